"""F1: one text that is not valid Unicode gave every later caller somebody else's answer."""

from __future__ import annotations

import asyncio
import os
import secrets
import textwrap
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from angarium.redis.client import Redis
from angarium.runtime.errors import InputInvalid
from tests.kit.roles import RoleProcess
from tests.kit.sample import SampleStore, sample_runtime, sample_settings
from tests.kit.server import ServerProcess

# What os.listdir makes of a file name in Latin-1.
ODD = os.fsdecode(b"caf\xe9")
UNPACKABLE: list[Any] = [ODD, None, [1], {"a": 1}, True]
CALLS = 200
ENDED_DEADLINE_S = 30.0

APPLICATION = """
    import os
    from angarium import Angarium

    app = Angarium()

    @app.step("open-file")
    async def open_file(step):
        if step.data["odd"]:
            raise FileNotFoundError(f"no such file: {os.fsdecode(b'caf' + bytes([0xe9]))}")
        return {"name": step.data["name"]}
"""


@pytest.mark.parametrize("argument", UNPACKABLE, ids=repr)
async def test_an_argument_that_cannot_be_packed_is_its_own_callers_error(
    redis_url: str, argument: Any
) -> None:
    async with await Redis.connect(sample_settings(redis_url).redis_options()) as redis:
        prefix = secrets.token_hex(4)

        async def echo(number: int) -> bool:
            value = f"{prefix}-{number}".encode()
            return bool(await redis.call("ECHO", value) == value)

        async def odd() -> None:
            with pytest.raises(InputInvalid):
                await redis.call("ECHO", argument)

        answers = await asyncio.gather(*(echo(n) for n in range(CALLS)), odd())
        answers += await asyncio.gather(*(echo(n) for n in range(CALLS)))
    assert answers.count(True) == 2 * CALLS


async def test_an_empty_command_is_refused(redis_url: str) -> None:
    async with await Redis.connect(sample_settings(redis_url).redis_options()) as redis:
        with pytest.raises(InputInvalid):
            await redis.call()
        assert await redis.call("ECHO", "mine") == b"mine"


async def test_a_pipeline_with_one_bad_command_sends_none_of_it(redis_url: str) -> None:
    async with await Redis.connect(sample_settings(redis_url).redis_options()) as redis:
        name = f"f1-{secrets.token_hex(4)}"
        with pytest.raises(InputInvalid):
            await redis.execute([("SET", name, 1), ("SET", name, ODD)], key=name, repeatable=False)
        assert await redis.call("GET", name, key=name) is None


@pytest.mark.parametrize("position", [0, 1, 63, 64, 127])
async def test_one_bad_item_of_a_batch_fails_alone(redis_url: str, position: int) -> None:
    async with sample_runtime(redis_url) as runtime:
        store = SampleStore(runtime)
        ids = [f"item-{number:03}" for number in range(128)]
        payloads = ["x"] * len(ids)
        payloads[position] = ODD
        results = await asyncio.gather(*map(store.accept, ids, payloads), return_exceptions=True)
        ids.pop(position)
        assert isinstance(results.pop(position), InputInvalid)
        assert set(results) == {"accepted"}, results
        assert sorted(await store.order()) == ids


async def test_an_odd_error_text_ends_its_own_transaction_and_nobody_elses_answer_changes(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "files.py").write_text(textwrap.dedent(APPLICATION))
    (tmp_path / "pipelines.toml").write_text(
        '[[pipelines]]\nname = "open"\nsteps = [{ type = "open-file" }]\n'
    )
    env = {
        "ANGARIUM_REDIS_URL": redis_server.url,
        "ANGARIUM_PREFIX": f"f1-{secrets.token_hex(4)}:",
        "ANGARIUM_TRANSACTIONS__PIPELINES": str(tmp_path / "pipelines.toml"),
        "PYTHONPATH": os.pathsep.join(
            [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    args = ["serve", "api", "node", "--app", "files:app"]
    async with RoleProcess(args, env, ready_lines=2) as role, aiohttp.ClientSession() as web:
        url = f"http://127.0.0.1:{role.port_of('api', 'http')}/v1/transactions"

        async def run(name: str, odd: bool) -> dict[str, Any]:
            body = {"pipeline": "open", "data": {"name": name, "odd": odd}}
            async with web.post(url, json=body) as answer:
                assert answer.status in (200, 201, 202), await answer.text()
                id = (await answer.json())["id"]
            async with asyncio.timeout(ENDED_DEADLINE_S):
                while True:
                    async with web.get(f"{url}/{id}", params={"wait_s": "5"}) as answer:
                        found: dict[str, Any] = await answer.json()
                    assert found["id"] == id, (id, found)
                    if found["status"] not in ("queued", "running"):
                        return found

        async def own(name: str) -> bool:
            found = await run(name, odd=False)
            return bool(found["status"] == "success" and found["output"] == {"name": name})

        failed = await run("odd", odd=True)
        assert failed["status"] == "internal-error"
        assert r"caf\udce9" in failed["note"]
        assert all(await asyncio.gather(*(own(f"name-{n}") for n in range(120))))
