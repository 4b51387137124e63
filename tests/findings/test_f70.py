"""F70: what foreign data may not do to a terminal, a reader of secrets, a browser or a socket.

Redacted URLs are in tests/runtime/test_urls.py, browsers in tests/security/test_browsers.py; the
table of `lake query` is in tests/lake/test_cli.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from angarium.cli.main import main
from angarium.client import Client
from angarium.runtime.errors import InputInvalid
from angarium.runtime.runtime import Runtime
from angarium.transactions.service import TransactionsService
from tests.kit.sample import sample_runtime
from tests.pickup.harness import gateway, sqlite
from tests.routing.harness import counts, envelope
from tests.routing.test_relay import running
from tests.security.wire import PATIENCE_S, api, dialled, frame, handshake, request, said
from tests.security.wire import status_of as status

# Clears the screen, and names the window.
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m"
SHOWN = "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m"


# The terminal


async def typed(runtime: Runtime, *arguments: str) -> int:
    environment = {
        "ANGARIUM_HOME": str(runtime.settings.home),
        "ANGARIUM_REDIS_URL": runtime.settings.redis_url,
        "ANGARIUM_PREFIX": runtime.settings.prefix,
        "ANGARIUM_DATABASE_URL": runtime.settings.database_url,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(name, text)
        return await asyncio.to_thread(main, [*arguments])


async def test_f70_escapes_in_ids_and_texts_are_shown(
    redis_url: str, no_settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sample_runtime(redis_url, home=tmp_path, database_url=sqlite(tmp_path)) as runtime:
        client = Client(runtime=runtime)
        await client.transactions.load(
            {
                "name": "pay",
                "steps": [{"type": "charge", "description": ESCAPES}],
                "description": ESCAPES,
            }
        )
        await client.conversations.request("anna", "q")
        await client.conversations.reply("anna", "q", f"a{ESCAPES}", {"text": ESCAPES})
        with pytest.raises(InputInvalid):  # pickup's ids are words
            await client.pickup.add(f"phone{ESCAPES}", {"n": 1}, recipients=["did:example:anna"])
        await client.pickup.add("phone\x9b2J", {"n": 1}, recipients=["did:example:anna"])
        await client.routing.send(f"did:key:{ESCAPES}", {"n": 1})
        for arguments in (
            ("find", "anna"),
            ("conversation", "show", "anna"),
            ("routing", "show", f"did:key:{ESCAPES}"),
            ("pipeline", "list"),
            ("pipeline", "show", "pay"),
        ):
            assert await typed(runtime, *arguments) == 0, arguments
            shown = capsys.readouterr().out
            assert SHOWN in shown, arguments
            assert [each for each in shown if not each.isprintable() and each != "\n"] == []
        assert await typed(runtime, "pickup", "show", "phone\x9b2J") == 0
        assert "phone\\x9b2J of default" in capsys.readouterr().out
        await client.close()


# Secrets of webhooks

HOOK = "https://me:s3cret-user@example.org/hook?jwt=s3cret-query"
REDACTED = "https://me:***@example.org/hook?jwt=***"


async def test_f70_a_reader_sees_no_secret_of_a_webhook(
    redis_url: str, no_settings: Path, tmp_path: Path
) -> None:
    settings = {
        "http": {"tokens": ["admin:boss", "read:looker"]},
        "transactions": {"delay_before_archiving": 0},
        "database_url": sqlite(tmp_path),
        "home": tmp_path,
    }
    async with api(redis_url, **settings) as (runtime, port):

        async def ask(line: str, token: str = "looker", body: object = None) -> str:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            text = b"" if body is None else json.dumps(body).encode()
            answer = (await said(port, request(line, headers, text))).decode()
            assert answer.split(" ")[1] in ("200", "201"), answer
            return answer

        pipeline = {"name": "p", "steps": [{"type": "s"}]}
        await ask("PUT /v1/pipelines/p", "boss", pipeline)
        start = {"pipeline": "p", "webhook": HOOK, "external_id": "o-1"}
        body = (await ask("POST /v1/transactions", "boss", start)).partition("\r\n\r\n")[2]
        ids = [json.loads(body)["id"]]
        for named in ("webhook", "reply"):
            known = {"metadata": {named: HOOK}}
            body = (await ask("PUT /datp/1.0/tx/start/p", "boss", known)).partition("\r\n\r\n")[2]
            ids.append(json.loads(body)["metadata"]["txId"])

        async def answers() -> list[str]:
            found = [await ask(f"GET /v1/search?id={id}") for id in (*ids, "o-1")]
            found += [await ask(f"GET /v1/transactions/{id}") for id in ids]
            found += [await ask(f"GET /datp/1.0/tx/status/{id}") for id in ids]
            found.append(await ask("GET /v1/transactions/by-external-id/o-1"))
            return found

        found = await answers()
        lists = ["/v1/transactions?status=queued", "/v1/transaction-list?status=queued"]
        found += [await ask(f"GET {path}") for path in lists]
        for id in ids:
            await TransactionsService(runtime).cancel(id)
            found.append(await ask(f"GET /v1/transactions/{id}?wait_s=1"))
            found.append(await ask(f"GET /v1/transactions/{id}/events"))
        found.append(await ask("GET /v1/transaction-webhooks"))
        assert "s3cret" not in "\n".join(found)
        assert sum(REDACTED in each for each in found) >= 15
        # The archive has them too, and so has whoever calls the webhook.
        assert (await TransactionsService(runtime).get(ids[0])).webhook == HOOK


# Sockets

PING = b'{"jsonrpc":"2.0","method":"ping","id":4711}'
Opened = Callable[[str, Path], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def of_gateway(redis_url: str, folder: Path) -> AsyncIterator[int]:
    async with gateway(redis_url, sqlite(folder)) as service:
        yield service.ports["gateway"]


@asynccontextmanager
async def of_relay(redis_url: str, _: Path) -> AsyncIterator[int]:
    async with running(redis_url) as (runtime, relay, _client):
        yield relay.ports["ws"]
        assert await counts(runtime) == {}, "nothing was queued"


@pytest.mark.parametrize("bit", [0x40, 0x20, 0x10])
@pytest.mark.parametrize("port_of", [of_gateway, of_relay])
async def test_f70_a_reserved_bit_ends_the_connection(
    redis_url: str, tmp_path: Path, port_of: Opened, bit: int
) -> None:
    async with port_of(redis_url, tmp_path) as port, dialled(port) as (reader, writer):
        writer.write(handshake())
        assert status(await reader.readuntil(b"\r\n\r\n")) == 101
        body = PING if port_of is of_gateway else envelope("key")
        writer.write(frame(body, 0x81 | bit))
        async with asyncio.timeout(PATIENCE_S):
            first, size = await reader.readexactly(2)
            assert (first, (await reader.readexactly(size))[:2]) == (0x88, b"\x03\xea")  # 1002
