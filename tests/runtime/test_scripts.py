"""Loading scripts, and every one of the runtime's called directly: success and each refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

import angarium
from angarium.dispatch import keys
from angarium.redis.scripts import Script
from angarium.runtime.errors import Overloaded, ScriptFailed
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.lease import ACQUIRE, LeaseTerm
from angarium.runtime.runtime import CLAIM_LAYOUT, LayoutClaim, OtherLayout
from angarium.runtime.scripts import HEADINGS, read_script
from tests.kit.cluster import ClusterProcess
from tests.kit.sample import ACCEPT_ITEMS, SampleStore, sample_runtime
from tests.kit.server import ServerProcess
from tests.kit.variants import transitions

SOURCE = Path(angarium.__file__).parent
HEADER = "\n".join(f"-- {heading}: none" for heading in HEADINGS)


@pytest.fixture(scope="module")
def declared_scripts() -> dict[str, Script]:
    return {f"{each.package}.{each.name}": each.script for each in transitions()}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("lua/*.lua")), ids=lambda path: path.stem)
def test_every_script_compiles_on_every_node(
    path: Path, cluster: ClusterProcess, declared_scripts: dict[str, Script]
) -> None:
    name = f"angarium.{path.parent.parent.name}.{path.stem}"
    script = declared_scripts[name]
    for node in cluster.nodes:
        assert node.client().script_load(script.source) == script.sha


def test_includes_are_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "x.lua"
    path.write_text(f"#!lua\n{HEADER}\n-- include: fence\nreturn fenced_off(1, 2)\n")
    script = read_script(path, "x")
    assert "local function fenced_off" in script.source
    assert script.source.startswith("#!lua\n")
    assert script.writes
    assert not script.repeatable


def test_functions_that_a_script_does_not_use_are_left_out_and_lines_keep_their_number(
    tmp_path: Path,
) -> None:
    used = "local function one()\n  if true then return 1 end\nend\n"
    used += "local function two() return one() end\n"
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "parts.lua").write_text(f"{used}local function three()\n  two()\nend\n")
    path = tmp_path / "x.lua"
    for body, kept in (
        ("return two()", "one two"),
        ("return one()", "one"),
        ("return 3 -- one", ""),
    ):
        path.write_text(f"#!lua\n{HEADER}\n-- include: parts\n{body}\n")
        source = read_script(path, "x").source
        assert [f"function {name}(" in source for name in ("one", "two", "three")] == [
            name in kept for name in ("one", "two", "three")
        ]
        line = 1 + len(HEADINGS) + 1 + used.count("\n") + 3 + 1  # the prelude has a line of its own
        assert source.split("\n")[line] == body


def test_a_change_of_an_include_changes_the_hash() -> None:
    assert ACQUIRE.script.sha != ACCEPT_ITEMS.script.sha
    assert len(ACCEPT_ITEMS.script.sha) == 40


def test_a_script_without_its_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.lua"
    path.write_text("#!lua\nreturn 1\n")
    with pytest.raises(ScriptFailed, match="Guarantee"):
        read_script(path, "x")


def test_a_missing_include_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.lua"
    path.write_text(f"#!lua\n{HEADER}\n-- include: nowhere\n")
    with pytest.raises(ScriptFailed, match="nowhere"):
        read_script(path, "x")


def test_only_declared_words_are_replies() -> None:
    assert ACQUIRE.decode([b"acquired", 3]) == LeaseTerm(3)
    nonsense: object
    for nonsense in (None, 7, [], b"two words", b"", [b"won", 3], [[b"acquired"]]):
        with pytest.raises(ScriptFailed):
            ACQUIRE.decode(nonsense)


async def test_a_flushed_script_cache_is_refilled_without_an_error(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        store = SampleStore(runtime)
        assert await store.accept("a") == "accepted"
        await runtime.redis.call_each_node("SCRIPT", "FLUSH")
        assert await store.accept("a") == "duplicate"
        assert await store.accept("b") == "accepted"


async def test_a_batch_is_one_call_and_one_journal_entry(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        store = SampleStore(runtime)
        partition, shared = 0, store.shared_keys(0)
        args: list[str | int] = [3, "a", "1", "b", "2", "a", "3"]
        assert await runtime.run(ACCEPT_ITEMS.script, partition, shared, args) == [
            b"accepted",
            b"accepted",
            b"duplicate",
        ]
        ((entry_id, fields),) = await Journal(runtime).read(0)
        entry = decode_entry(entry_id, fields)
        assert [(e.event, e.subject) for e in entry.events] == [
            ("accepted", "a"),
            ("accepted", "b"),
        ]
        assert entry.module == "sample"
        assert entry.actor == runtime.actor


async def test_the_layout_is_claimed_once_and_then_agreed_with(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        name = f"{runtime.settings.prefix}other"

        async def run(version: int, partitions: int) -> object:
            args = CLAIM_LAYOUT.arguments(LayoutClaim(version, partitions, "p:"))
            call = CLAIM_LAYOUT.script.eval([name], args)
            return CLAIM_LAYOUT.decode(await runtime.redis.call(*call, key=name))

        assert await run(1, 4) == "created"
        assert await run(1, 4) == "agreed"
        assert await run(1, 5) == OtherLayout(1, 4)
        assert await run(2, 4) == OtherLayout(1, 4)


async def test_a_full_memory_refuses_the_whole_script() -> None:
    with ServerProcess(config={"maxmemory": "3mb"}) as server:
        async with sample_runtime(server.url) as runtime:
            store = SampleStore(runtime)

            async def fill() -> None:
                for number in range(2000):
                    await store.accept(f"id{number}", "x" * 10_000)

            with pytest.raises(Overloaded):
                await fill()
            accepted = len(await store.all_ids())
            witness = server.client()
            payloads = runtime.keyspace.name(keys.MESSAGES_PAYLOADS)
            assert accepted == witness.hlen(payloads) > 0
