"""`angarium journal …` shows readers and removes one."""

from __future__ import annotations

import asyncio
import json

import pytest

from angarium.cli.main import main
from angarium.runtime.journal import Journal
from angarium.runtime.runtime import Runtime
from tests.kit.sample import sample_settings


async def test_a_reader_is_shown_and_can_be_forgotten(
    any_redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime.open(sample_settings(any_redis_url)) as runtime:
        monkeypatch.setenv("ANGARIUM_REDIS_URL", any_redis_url)
        monkeypatch.setenv("ANGARIUM_PREFIX", runtime.settings.prefix or "")
        monkeypatch.setenv("ANGARIUM_PARTITIONS", str(runtime.settings.partitions))
        await Journal(runtime).register("left")

        async def said(*words: str) -> tuple[int, str, str]:
            code = await asyncio.to_thread(main, ["journal", *words])
            return code, *capsys.readouterr()

        code, out, _ = await said("show", "--json")
        assert code == 0
        shown = json.loads(out)
        assert [set(each["readers"]) for each in shown] == [{"left"}] * runtime.settings.partitions

        code, out, _ = await said("show")
        titles, first, *_ = out.splitlines()
        assert titles.split("  ")[0] == "partition"
        assert first.split()[:6] == ["0", "0", "0", "0", "left", "at"]

        code, _, err = await said("forget", "other")
        assert (code, err) == (1, "angarium: no reader 'other' holds the journal; readers: left\n")

        assert await said("forget", "left") == (0, "forgotten: left\n", "")
        assert (await Journal(runtime).status(0)).readers == {}
