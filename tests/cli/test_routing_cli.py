"""`angarium routing` in a real process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.routing.harness import post, routing
from tests.routing.test_roles import environment

COMMAND = Path(sys.executable).with_name("angarium")


async def route(settings: Any, *arguments: str) -> tuple[int, str, str]:
    env = {"PATH": "/usr/bin:/bin", **environment(settings)}
    command = [str(COMMAND), "route", *arguments]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    ended = await asyncio.to_thread(run)
    return ended.returncode, ended.stdout, ended.stderr


async def test_routing_shows_keys_and_instances_and_rebalances(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        settings = runtime.settings
        await store.touch("a")
        await store.assign_recip_key_to_new_uid(["l", "m"])
        await post(store, "k", b"1", b"2")
        await store.touch("b")
        code, out, _ = await route(settings, "show", "k", "--json")
        assert code == 0
        assert json.loads(out)["pending"] == 2
        _, out, _ = await route(settings, "instances")
        assert out.splitlines()[1].split()[:4] == ["a", "live", "3", "yes"]
        _, out, _ = await route(settings, "rebalance", "--json")
        assert json.loads(out) == {"moved": 1}
        _, out, _ = await route(settings, "instances", "--json")
        assert {each["keys"] for each in json.loads(out)["instances"]} == {1, 2}
        code, out, err = await route(settings, "show", "never")
        assert (code, out) == (1, "")
        assert err.startswith("angarium: no message for 'never'")
        assert err.count("\n") == 1
