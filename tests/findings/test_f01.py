"""F1: one text that is not valid Unicode gave every later caller somebody else's answer."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from angarium.redis.client import Redis
from angarium.runtime.errors import InputInvalid
from tests.findings.file_steps import file_steps
from tests.kit.sample import SampleStore, sample_runtime, sample_settings
from tests.kit.server import ServerProcess

# What os.listdir makes of a file name in Latin-1.
ODD = os.fsdecode(b"caf\xe9")
UNPACKABLE: list[Any] = [ODD, None, [1], {"a": 1}, True]
CALLS = 200


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
    async with file_steps(redis_server.url, tmp_path) as steps:
        failed = await steps.run("odd", odd=True)
        assert failed["status"] == "internal-error"
        assert r"caf\udce9" in failed["note"]
        own = steps.gets_its_own_output
        assert all(await asyncio.gather(*(own(f"name-{n}") for n in range(120))))
