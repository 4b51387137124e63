"""`angarium routing` in a real process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from angarium.routing.overview import RoutingSampler
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


async def test_a_retired_instance_has_no_notice_and_no_age(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        await store.touch("a")
        await store.assign_recip_key_to_new_uid(["l", "m"])
        await store.retire("a")
        _, out, _ = await route(runtime.settings, "instances")
        assert out.splitlines()[1].split() == ["a", "retired", "2", "no", "never"]
        _, out, _ = await route(runtime.settings, "instances", "--json")
        (found,) = json.loads(out)["instances"]
        assert (found["retired"], found["silent_ms"], found["keys"]) == (True, None, 2)
        _, out, _ = await route(runtime.settings, "show", "l")
        assert "heartbeat" not in out
        sample = await RoutingSampler(runtime).sample(set(), 0)
        assert (sample.facts["silent"], sample.facts["retired"], sample.notices) == (0, 1, [])


async def test_operators_remove_instances_prune_and_use_dead_letters(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        settings = runtime.settings
        await store.touch("a")
        await store.assign_recip_key_to_new_uid(["l", "m"])
        await add(runtime, "inbound", "m1", "m2", reason="late")
        code, _, err = await route(settings, "instances", "remove", "a")
        assert (code, err.count("\n")) == (1, 1)
        assert "is live" in err
        _, out, _ = await route(settings, "instances", "prune", "--idle-keys", "--json")
        assert json.loads(out) == {"instances": 0, "keys": 2}
        assert (await route(settings, "instances", "remove", "a", "--force"))[0] == 0
        _, out, _ = await route(settings, "instances", "list", "--json")
        assert json.loads(out)["instances"] == []
        _, out, err = await route(settings, "dead", "list", "--limit", "1")
        assert out.splitlines()[1].split()[0] == "m1"
        assert "--after" in err
        _, out, _ = await route(settings, "dead", "show", "m2", "--json")
        assert json.loads(out)["reason"] == "late"
        _, out, _ = await route(settings, "dead", "retry", "m1", "--json")
        assert json.loads(out) == {"letters": {"m1": "retried"}}
        code, out, err = await route(settings, "dead", "retry", "m1")
        assert (code, out) == (1, "m1 dead_letter_unknown\n")
        assert "there is no dead letter 'm1'" in err
        assert (await route(settings, "dead", "drop"))[0] != 0, "nothing was named"
        _, out, _ = await route(settings, "dead", "drop", "--reason", "at", "--json")
        assert json.loads(out) == {"dropped": 1}


async def test_dead_deliveries_have_their_own_commands(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, _):
        settings = runtime.settings
        await add(runtime, "inbound", "m1")
        await add(runtime, "outbound", "m2", "m3", reason="answered 500")
        _, out, _ = await route(settings, "dead-deliveries", "list", "--reason", "500")
        assert [line.split()[0] for line in out.splitlines()] == ["id", "m2", "m3"]
        code, out, _ = await route(settings, "dead-deliveries", "show", "m2")
        assert (code, "answered 500" in out, "message:" in out) == (0, True, True)
        assert (await route(settings, "dead-deliveries", "show", "m1"))[0] == 1
        _, out, _ = await route(settings, "dead-deliveries", "drop", "m3", "--json")
        assert json.loads(out) == {"letters": {"m3": "dropped"}}
        _, out, _ = await route(settings, "dead-deliveries", "retry", "--all", "--json")
        assert json.loads(out) == {"retried": 1, "unusable": 0}
        _, out, _ = await route(settings, "dead", "list", "--json")
        assert [each["id"] for each in json.loads(out)["letters"]] == ["m1"]
