"""`angarium routing` in a real process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.routing.harness import post, routing
from tests.routing.test_dead_letters import add
from tests.routing.test_roles import environment

COMMAND = Path(sys.executable).with_name("angarium")


async def route(settings: Any, *arguments: str) -> tuple[int, str, str]:
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    # On a busy machine the commands of a test take longer than an instance may be silent.
    slow = {"ANGARIUM_ROUTING__STALE_AFTER_MS": "600000"}
    env = {"PATH": "/usr/bin:/bin", **kept, **environment(settings, None, **slow)}
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


async def test_operators_remove_instances_prune_and_use_dead_letters(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        settings = runtime.settings
        await store.touch("a")
        await store.assign_recip_key_to_new_uid(["l", "m"])
        await add(runtime, "inbound", "m1", "m2", reason="late")
        code, _, err = await route(settings, "instances", "remove", "a")
        assert (code, err.count("\n")) == (1, 1)
        assert "is live" in err
        _, out, _ = await route(settings, "prune", "--idle-keys", "--json")
        assert json.loads(out) == {"instances": 0, "keys": 2}
        assert (await route(settings, "instances", "remove", "a", "--force"))[0] == 0
        _, out, _ = await route(settings, "instances", "list", "--json")
        assert json.loads(out)["instances"] == []
        _, out, err = await route(settings, "dead", "list", "--limit", "1")
        assert out.splitlines()[1].split()[0] == "m1"
        assert "--after" in err
        _, out, _ = await route(settings, "dead", "show", "m2")
        assert json.loads(out)["reason"] == "late"
        _, out, _ = await route(settings, "dead", "retry", "m1", "--json")
        assert json.loads(out) == {"kept": 1}
        assert (await route(settings, "dead", "drop"))[0] != 0, "nothing was named"
        _, out, _ = await route(settings, "dead", "drop", "--reason", "la", "--json")
        assert json.loads(out) == {"dropped": 1}
