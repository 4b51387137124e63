"""A holder stopped past its lease and woken again: its old term writes nothing."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.sample import SampleStore, sample_runtime
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


async def test_a_paused_holder_cannot_write_under_its_old_term(redis_server: ServerProcess) -> None:
    async with sample_runtime(redis_server.url) as runtime:
        store = SampleStore(runtime)
        env = {
            "ANGARIUM_REDIS_URL": redis_server.url,
            "ANGARIUM_PREFIX": runtime.settings.prefix,
        }

        def holder(name: str) -> RoleProcess:
            return RoleProcess(["-m", "tests.faults.lease_holder", name], env)

        async def wrote(name: str) -> bool:
            return any(value.endswith(f":{name}") for value in await store.order(0))

        for number in range(rounds(3, 30)):
            old_name, new_name = f"old{number}", f"new{number}"
            async with holder(old_name) as old:
                await eventually(partial(wrote, old_name))
                old.pause()
                async with holder(new_name) as new:
                    await eventually(partial(wrote, new_name))
                    old.resume()
                    old.wait_line(lambda line: "refused" in line)
                    report = json.loads(old.lines()[-1])
                    assert report["refused"] >= 1
                    assert report["trusted"] is False
                    assert new.alive
            await runtime.redis.call("DEL", store.lease_keys.lock)
        terms = [int(value.partition(":")[0]) for value in await store.order(0)]
        assert terms == sorted(terms), "a write of an older term came after a newer one's"
        assert len(set(terms)) == 2 * rounds(3, 30)
