"""Ids that look like keys, tags, paths or options: each names one thing, and only that."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest

from angarium.pickup.client import CallRefused
from angarium.redis.cluster import slot_of
from angarium.runtime.keys import KEYS
from angarium.runtime.keyspace import Keyspace, Scope
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.cluster import ClusterProcess
from tests.kit.roles import RoleProcess
from tests.pickup.harness import DID, connected, gateway, sqlite
from tests.routing.harness import routing
from tests.security.wire import api, request, said
from tests.security.wire import status_of as status

ODD = [
    "{p1}:x", "}{p1}", "{", "}", "{}", "{x}{p3}", "a\nb", "a\r\nDEL x\r\n", "a\x00b", "*", "a b",
    "../../x", "%7Bp1%7D", "'; return redis.call('FLUSHALL') --", '"]]', "$(id)", "-1", "+inf",
    "a|b|c", "a:b:c", "\u202e", "0",
]  # fmt: skip


@pytest.mark.parametrize("partitions", [1, 7])
def test_no_id_moves_a_key_to_another_slot_or_onto_another_key(partitions: int) -> None:
    space = Keyspace("pre:", partitions)
    for partition in range(partitions):
        slots, names = set(), set()
        with_id = [key for key in KEYS if key.scope is Scope.PARTITION and "{" in key.name]
        for key in with_id:
            for id in ODD:
                name = space.name(key, partition, id)
                slots.add(slot_of(name.encode()))
                names.add(name)
        if partitions > 1:
            assert len(slots) == 1, partition
        # Two ids of one key never share a name, whatever they hold.
        assert len(names) == len({(key.name, id) for key in with_id for id in ODD})


async def test_odd_ids_of_connections_keep_apart_on_a_cluster(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    async with gateway(cluster.url, sqlite(tmp_path)) as service, connected(service) as (client, _):
        taken = {}
        for number, id in enumerate(ODD):
            with contextlib.suppress(CallRefused):
                taken[id] = await client.add_message(id, [DID], number)
        assert len(taken) > len(ODD) / 2
        for id, message_id in taken.items():
            found = await client.take_from_queue(id)
            assert [each.id for each in found] == [message_id], id


async def test_odd_recipient_keys_keep_apart_on_a_cluster(cluster: ClusterProcess) -> None:
    async with routing(cluster.url) as (_, store):
        for number, key in enumerate(ODD):
            await store.process_payload_recip_key(key, b"%d" % number)
        for key in ODD:
            assert (await store.show(key)).waiting == 1, key


PATHS = [
    "/assets/../http.py", "/assets/..%2f..%2fhttp.py", "/assets/%2e%2e/%2e%2e/http.py",
    "/assets//etc/passwd", "/assets/....//....//etc/passwd", "/assets/..\\..\\http.py",
    "/assets/index.html%00.css", "/assets/static/../../../../../../etc/passwd", "/assets/",
    "/assets/.%252e/http.py", "/assets/pages/../../page.py", "/assets/__init__.py",
]  # fmt: skip


async def test_no_path_leads_out_of_the_dashboards_files(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url) as (_, port):
        for path in PATHS:
            answer = await said(port, request(f"GET {path}"))
            assert status(answer) in (400, 404), path
            assert b"import" not in answer, path
            assert b"root:" not in answer, path


async def test_odd_ids_in_the_paths_of_the_api_are_unknown_and_no_fault(
    redis_url: str, tmp_path: Path, no_settings: object
) -> None:
    (tmp_path / "secret").write_text("do not read")
    paths = [
        "/v1/transactions/{}", "/v1/pickup/connections/{}", "/v1/lake/history/{}",
        "/v1/routing/keys/{}", "/v1/conversations/{}", "/v1/dispatch/dead/{}", "/v1/pipelines/{}",
        "/v1/search?id={}", "/v1/transactions/dead/{}", "/v1/transactions/dead?reason={}",
    ]  # fmt: skip
    async with api(redis_url, lake_url=str(tmp_path / "lake")) as (runtime, port):
        before = await _keys(runtime)
        odd = [*ODD, "../secret", "../../secret", "' or 1=1 --", "x'; drop table events; --"]
        for id in odd:
            for path in paths:
                asked = path.format(quote(id, safe=""))
                answer = await said(port, request(f"GET {asked}"))
                assert status(answer) in (200, 400, 404, 422), (asked, answer[:300])
                assert b"do not read" not in answer
        made = {name for name in await _keys(runtime) - before if "process" not in name}
        assert made == set()  # but for the reports of the role itself, asking makes nothing


async def _keys(runtime: Runtime) -> set[str]:
    found: list[bytes] = await runtime.redis.call("KEYS", f"{runtime.settings.prefix}*")
    return {name.decode() for name in found}


@pytest.mark.parametrize(
    "command",
    [
        ["tx", "show", "--", "--help"],
        ["tx", "show", "--", "-rf"],
        ["conversation", "show", "--", "--json"],
        ["pickup", "show", "--", "--all"],
        ["route", "show", "--", "-k"],
        ["find", "--", "--version"],
        ["token", "revoke", "--", "--all-of-them"],
        ["dispatch", "dead", "drop", "--", "--all"],
        ["tx", "dead", "drop", "--", "--all"],
    ],
    ids=" ".join,
)
def test_an_id_that_looks_like_an_option_is_an_id_behind_two_dashes(
    command: Sequence[str], redis_url: str
) -> None:
    settings = {"ANGARIUM_REDIS_URL": redis_url, "ANGARIUM_PREFIX": "cli-odd:"}
    settings["ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS"] = "5000"
    with RoleProcess(list(command), settings, ready_lines=0) as role:
        code = role.wait(60)
        printed = "\n".join([*role.lines(), *role.stderr()])
    assert code in (0, 1)
    assert "Usage" not in printed
    assert "Traceback" not in printed
    assert len(printed.splitlines()) <= 12


def test_a_home_with_odd_letters_is_a_folder_and_no_command(tmp_path: Path) -> None:
    """The embedded server gets its folder as an argument, never as a line of a shell or a file."""
    home = tmp_path / "a b'\"$(touch hurt);`touch hurt`\\ --port 1"
    settings = {"ANGARIUM_HOME": str(home), "ANGARIUM_HTTP__PORT": "0"}
    with RoleProcess(["serve", "api"], settings, deadline_s=60) as role:
        assert role.terminate(30) == 0
    assert home.is_dir()
    assert not list(tmp_path.rglob("hurt"))


def test_settings_that_would_break_out_of_a_keys_name_are_refused() -> None:
    for prefix in ("{p1}", "a}", "a b", "a\n", "x" * 100):
        with pytest.raises(Exception, match=r"(?i)prefix") as raised:
            load(prefix=prefix)
        assert "Traceback" not in json.dumps(str(raised.value))
