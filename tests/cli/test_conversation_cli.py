"""`angarium conversation dead …`, run in this process."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from angarium.cli.main import main
from angarium.conversations.model import MinMessageInfo
from angarium.conversations.script_values import NewReply
from angarium.conversations.service import ConversationService
from angarium.runtime.runtime import Runtime
from tests.kit.sample import sample_runtime


class Command:
    def __init__(self, runtime: Runtime, captured: pytest.CaptureFixture[str]) -> None:
        self._settings = runtime.settings
        self._service = ConversationService(runtime)
        self._captured = captured

    async def run(self, *words: str) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANGARIUM_REDIS_URL", self._settings.redis_url)
            patch.setenv("ANGARIUM_PREFIX", self._settings.prefix)
            patch.setenv("ANGARIUM_PARTITIONS", str(self._settings.partitions))
            code = await asyncio.to_thread(main, ["conversation", "dead", *words])
        return code, *self._captured.readouterr()

    async def json(self, *words: str) -> Any:
        code, out, _ = await self.run(*words, "--json")
        assert code == 0
        return json.loads(out)

    async def die(self, id: str, why: str, conversation_id: str) -> None:
        which = MinMessageInfo(f"r-{id}-{conversation_id}", id, conversation_id)
        await self._service.request(conversation_id, which.request_id, "web")
        await self._service.store.accept_reply(
            NewReply(conversation_id, which.request_id, id, 2, b'{"messageOptions":{}}')
        )
        assert await self._service.cancel_group(which, why, dead=True) == 1


async def test_dead_replies_are_listed_shown_retried_and_dropped_by_reason(
    redis_url: str, no_settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sample_runtime(redis_url) as runtime:
        command = Command(runtime, capsys)
        for number in range(3):
            await command.die(f"a{number}", "503 busy", "c")
        await command.die("b1", "403 no", "d")
        _, out, _ = await command.run("list", "--reason", "403")
        titles, row = [re.split("  +", line) for line in out.splitlines()]
        assert titles == ["id", "died", "tries", "last reason", "conversation_id"]
        assert (row[0], *row[2:]) == ("b1", "0", "403 no", "d")
        page = await command.json("list", "--limit", "2")
        rest = await command.json("list", "--after", page["next"])
        ids = [each["id"] for each in page["letters"] + rest["letters"]]
        assert (ids, rest["next"]) == (["a0", "a1", "a2", "b1"], None)
        shown = await command.json("show", "b1")
        assert shown["task"] == {"messageOptions": {}}
        assert "messageOptions" in (await command.run("show", "b1"))[1]
        assert await command.json("retry", "--reason", "503") == {"retried": 3, "unusable": 0}
        assert await command.json("drop", "--reason", "503") == {"dropped": 0}
        assert (await command.run("drop", "--reason", "403"))[:2] == (0, "1 dropped\n")
        assert (await command.json("list"))["letters"] == []


async def test_an_id_of_two_conversations_and_an_unknown_id_are_named(
    redis_url: str, no_settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sample_runtime(redis_url, partitions=4) as runtime:
        command, partition_of = Command(runtime, capsys), runtime.keyspace.partition_of
        other = next(f"c{n}" for n in range(100) if partition_of(f"c{n}") != partition_of("c"))
        for conversation_id in ("c", other):
            await command.die("same", "no", conversation_id)
        code, out, err = await command.run("retry", "same", "nobody")
        assert (code, out) == (1, "same conflict\nnobody dead_letter_unknown\n")
        assert "'c'" in err
        assert f"'{other}'" in err
        assert "there is no dead letter 'nobody'" in err
        assert len((await command.json("list"))["letters"]) == 2
