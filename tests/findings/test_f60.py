"""F60: small faults of commands and pages, each as a user met it.

The retired instance is in tests/cli/test_routing_cli.py, ages and the titles of piped lists in
tests/cli/test_commands.py, and the recipes of the cookbook are run by tests/lake/test_docs.py.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from pathlib import Path
from typing import Any

import pytest

from angarium.cli.main import main
from angarium.runtime.settings import CommonSettings
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.kit.roles import ROOT
from tests.pickup.harness import connected, gateway, sqlite
from tests.transactions.api_client import api
from tests.transactions.harness import harness, running_node
from tests.transactions.test_webhooks import receiver, sending

DEADLINE_S = 30.0
HTTP: dict[str, Any] = {"http": {"port": 0}}


async def typed(settings: CommonSettings, *arguments: str) -> int:
    environment = {
        "ANGARIUM_HOME": str(settings.home),
        "ANGARIUM_REDIS_URL": settings.redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_PARTITIONS": str(settings.partitions),
        "ANGARIUM_DATABASE_URL": settings.database_url,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(name, text)
        return await asyncio.to_thread(main, [*arguments])


async def test_f60_an_empty_queue_is_not_counted(
    redis_url: str, no_settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = f"t{secrets.token_hex(4)}:"
    async with gateway(redis_url, sqlite(tmp_path), prefix=prefix) as service:
        given = {"prefix": prefix, "database_url": sqlite(tmp_path), "home": tmp_path}
        settings = load(redis_url=redis_url, **given)
        async with connected(service) as (client, _):
            for connection in ("anna", "bert"):
                await client.add_message(connection, ["did:example:x"], 1)
            assert await typed(settings, "pickup", "show") == 0
            assert "2 queues with messages in Redis" in capsys.readouterr().out
            (message,) = await client.take_from_queue("anna", limit=1)
            await client.remove_messages("anna", [message.id])
            assert await typed(settings, "pickup", "show") == 0
            assert "1 queue with messages in Redis" in capsys.readouterr().out


async def test_f60_a_start_that_waits_exits_as_the_transaction_ended(
    redis_url: str, no_settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        settings = here.runtime.settings
        for step, status, code in (
            ("echo", "success", 0),
            ("fail", "failed", 1),
            ("abort", "aborted", 1),
            ("strange", "internal-error", 1),
        ):
            await here.define(step, {"type": step})
            start = ("transactions", "start", step, "{}", "--wait-s", "30")
            assert await typed(settings, *start) == code, step
            shown = capsys.readouterr().out
            assert re.search(rf"^status +{status}$", shown, re.MULTILINE), shown
        # One that has not ended in time is no success either.
        await here.define("nowhere", {"type": "nobody-has-it"})
        start = ("transactions", "start", "nowhere", "{}", "--wait-s", "0.1")
        assert await typed(settings, *start) == 1


async def test_f60_a_webhook_names_the_transaction_as_the_api_does(redis_url: str) -> None:
    """Clients of /datp/1.0 get the reply that they know, and no more."""
    async with (
        receiver() as there,
        harness(redis_url, allow_private_addresses=True, **HTTP) as here,
        running_node(here.runtime),
        sending(here),
        api(here.runtime) as http,
    ):
        await here.define("one", {"type": "echo"})
        url = there.url("good")
        start = {"pipeline": "one", "webhook": url}
        _, started = await http.request("POST", "/v1/transactions", start)
        known = {"metadata": {"webhook": url}}
        _, datp = await http.request("PUT", "/datp/1.0/tx/start/one", known)
        datp_id = datp["metadata"]["txId"]
        await eventually(lambda: there.about(started["id"]) and there.about(datp_id), DEADLINE_S)
        (body,) = there.about(started["id"])
        assert (body["id"], body["metadata"]["status"]) == (started["id"], "success")
        (body,) = there.about(datp_id)
        assert sorted(body) == ["data", "metadata", "progressReport"]


def test_f60_recipes_by_date_and_outcome_find_failed_transactions() -> None:
    text = (ROOT / "docs/lake/cookbook.md").read_text()
    asked = re.findall(r"outcome in \(([^)]*)\)", text)
    assert len(asked) >= 3
    assert all("'failed'" in each and "'dead'" in each for each in asked)
    assert re.search(r"where date = '\d{4}-\d\d-\d\d'", text)
