"""`angarium journal …`: what it holds, and letting go of a reader that is gone."""

from __future__ import annotations

import asyncio
import json

import pytest

from angarium.cli.main import main
from angarium.core.ground import Ground
from angarium.core.journal import Journal
from tests.kit.sample import sample_settings


async def test_a_reader_is_shown_and_can_be_forgotten(
    any_redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Ground.open(sample_settings(any_redis_url)) as ground:
        monkeypatch.setenv("ANGARIUM_REDIS_URL", any_redis_url)
        monkeypatch.setenv("ANGARIUM_PREFIX", ground.settings.prefix or "")
        monkeypatch.setenv("ANGARIUM_PARTITIONS", str(ground.settings.partitions))
        await Journal(ground).register("left")

        async def said(*words: str) -> tuple[int, str, str]:
            code = await asyncio.to_thread(main, ["journal", *words])
            return code, *capsys.readouterr()

        code, out, _ = await said("show", "--json")
        assert code == 0
        shown = json.loads(out)
        assert [set(each["readers"]) for each in shown] == [{"left"}] * ground.settings.partitions

        code, out, _ = await said("show")
        assert out.startswith("partition 0 entries 0 events 0 dropped 0 readers left at ")

        code, _, err = await said("forget", "other")
        assert (code, err) == (1, "angarium: no reader 'other' holds the journal; readers: left\n")

        assert await said("forget", "left") == (0, "forgotten: left\n", "")
        assert (await Journal(ground).status(0)).readers == {}
