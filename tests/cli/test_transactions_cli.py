"""`angarium transactions dead …` and `rerun`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from angarium.cli.main import main
from tests.transactions.harness import Harness, harness
from tests.transactions.test_dead_letters import die


class Commands:
    """Runs the command against the keyspace of a harness."""

    def __init__(self, here: Harness, captured: pytest.CaptureFixture[str]) -> None:
        self.here = here
        self._captured = captured

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        settings = self.here.runtime.settings
        environment = {
            "ANGARIUM_HOME": str(settings.home),
            "ANGARIUM_REDIS_URL": settings.redis_url,
            "ANGARIUM_PREFIX": settings.prefix,
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, text in environment.items():
                patch.setenv(name, text)
            code = await asyncio.to_thread(main, ["transactions", *arguments])
        return code, *self._captured.readouterr()

    async def json(self, *arguments: str) -> Any:
        code, out, err = await self.run(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


Open = Callable[[str], AbstractAsyncContextManager[Commands]]


@pytest.fixture
def commands(no_settings: Path, capsys: pytest.CaptureFixture[str]) -> Open:
    @asynccontextmanager
    async def opened(redis_url: str) -> AsyncIterator[Commands]:
        async with harness(redis_url) as here:
            yield Commands(here, capsys)

    return opened


async def test_dead_transactions_are_listed_and_shown(redis_url: str, commands: Open) -> None:
    async with commands(redis_url) as tx:
        (one,) = await die(tx.here, "ValueError", data={"n": 1}, owner="ann")
        (two,) = await die(tx.here, "KeyError", pipeline="two")
        page = await tx.json("dead", "list", "--limit", "1")
        assert [each["id"] for each in page["letters"]] == [two]
        page = await tx.json("dead", "list", "--after", page["next"])
        assert ([each["id"] for each in page["letters"]], page["next"]) == ([one], None)
        for chosen in (("--owner", "ann"), ("--pipeline", "one"), ("--reason", "alue")):
            page = await tx.json("dead", "list", *chosen)
            assert [each["id"] for each in page["letters"]] == [one], chosen
        found = await tx.json("dead", "show", one)
        assert (found["owner"], found["step"], found["data"]) == ("ann", 1, {"n": 1})
        _, out, _ = await tx.run("dead", "list")
        head, first, _ = out.splitlines()
        titles = ["id", "died", "tries", "last", "reason", "pipeline", "owner", "step", "note"]
        assert head.split() == titles
        words = first.split()
        assert (words[0], words[4:8]) == (two, ["KeyError", "two", "default", "1"])
        _, out, _ = await tx.run("dead", "show", one)
        assert out.splitlines()[-2:] == ["data:", '{"n":1}']
        code, _, err = await tx.run("dead", "show", "ghost", "--json")
        assert (code, err) == (1, "angarium: there is no dead letter 'ghost'\n")


async def test_dead_transactions_are_retried_and_dropped_by_id(
    redis_url: str, commands: Open
) -> None:
    async with commands(redis_url) as tx:
        one, two, three = await die(tx.here, "ValueError", "ValueError", "ValueError")
        assert await tx.json("dead", "retry", one) == {"letters": {one: "retried"}}
        assert (await tx.here.state(one)).status == "queued"
        code, out, err = await tx.run("dead", "drop", two, one, "--json")
        assert code == 1
        assert json.loads(out) == {"letters": {two: "dropped", one: "dead_letter_unknown"}}
        assert err == f"angarium: transaction '{one}' is not a dead letter\n"
        code, _, err = await tx.run("dead", "drop", three, "--owner", "ann")
        assert (code, err) == (1, f"angarium: there is no dead letter '{three}'\n")
        assert (await tx.here.state(three)).reason == "ValueError"


async def test_all_of_a_reason_pipeline_or_owner_are_retried_or_dropped(
    redis_url: str, commands: Open
) -> None:
    async with commands(redis_url) as tx:
        await die(tx.here, "ValueError", "KeyError", owner="ann")
        await die(tx.here, "ValueError", "KeyError", pipeline="two")
        retried = await tx.json("dead", "retry", "--reason", "Value", "--owner", "ann")
        assert retried == {"retried": 1}
        assert await tx.json("dead", "drop", "--all", "--pipeline", "two") == {"dropped": 2}
        assert await tx.json("dead", "drop", "--reason", "Error") == {"dropped": 1}
        assert await tx.json("dead", "retry", "--all") == {"retried": 0}
        assert await tx.json("dead", "list") == {"letters": [], "next": None}


async def test_retry_and_drop_need_ids_or_all_and_a_filter_needs_a_name(
    redis_url: str, commands: Open
) -> None:
    async with commands(redis_url) as tx:
        (id,) = await die(tx.here, "ValueError")
        for action in ("retry", "drop"):
            for given in ((), (id, "--all"), ("--owner", "default")):
                code, _, err = await tx.run("dead", action, *given)
                assert code == 1
                assert "by their ids, or by --all or --reason" in err
            for name in ("--owner", "--pipeline"):
                code, _, err = await tx.run("dead", action, "--all", name, "")
                assert (code, "letters, digits" in err) == (1, True), err
        assert (await tx.here.state(id)).reason == "ValueError"


async def test_one_is_rerun_with_new_data(redis_url: str, commands: Open) -> None:
    async with commands(redis_url) as tx:
        (id,) = await die(tx.here, "ValueError", data={"n": 1})
        assert await tx.json("rerun", id, "--data", '{"n": 2}') == {"status": "queued"}
        (taken,) = await tx.here.take()
        assert taken.checkpoint == b'0 0 {"n": 2}'
        code, _, err = await tx.run("rerun", id)
        assert (code, err) == (1, f"angarium: transaction '{id}' is not a dead letter\n")
        assert (await tx.run("rerun"))[0] == 2, "rerun takes one id; all: dead retry"
