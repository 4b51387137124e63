"""Loading scripts, and every one of the runtime's called directly: success and each refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

import angarium
from angarium.dispatch import keys
from angarium.redis.scripts import Script
from angarium.runtime.errors import Overloaded, ScriptFailed
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.scripts import load_script, read_script, status_of
from tests.kit.cluster import ClusterProcess
from tests.kit.sample import ACCEPT_ITEMS, SampleStore, sample_runtime
from tests.kit.server import ServerProcess
from tests.kit.variants import transitions

SOURCE = Path(angarium.__file__).parent
HEADER = "\n".join(
    f"-- {heading}: none"
    for heading in ("Guarantee", "KEYS", "ARGV", "Returns", "Events", "Repeats")
)


@pytest.fixture(scope="module")
def declared_scripts() -> dict[str, Script]:
    return {f"{each.package}.{each.name}": each.script for each in transitions()}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("lua/*.lua")), ids=lambda path: path.stem)
def test_every_script_compiles_on_every_node(
    path: Path, cluster: ClusterProcess, declared_scripts: dict[str, Script]
) -> None:
    name = f"angarium.{path.parent.parent.name}.{path.stem}"
    script = declared_scripts.get(name) or read_script(path, path.stem)
    for node in cluster.nodes:
        assert node.client().script_load(script.source) == script.sha


def test_includes_are_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "x.lua"
    path.write_text(f"#!lua\n{HEADER}\n-- include: fence\nreturn 1\n")
    script = read_script(path, "x")
    assert "local function fenced_off" in script.source
    assert script.source.startswith("#!lua\n")
    assert script.writes
    assert not script.repeatable


def test_a_change_of_an_include_changes_the_hash() -> None:
    assert load_script("angarium.runtime", "acquire_lease").sha != ACCEPT_ITEMS.script.sha
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


def test_only_words_are_statuses() -> None:
    assert status_of(b"accepted") == "accepted"
    assert status_of([b"refused", 3]) == "refused"
    nonsense: object
    for nonsense in (None, 7, [], b"two words", b""):
        with pytest.raises(ScriptFailed):
            status_of(nonsense)


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
    claim = load_script("angarium.runtime", "claim_layout")
    async with sample_runtime(redis_url) as runtime:
        name = f"{runtime.settings.prefix}other"

        async def run(*args: int | str) -> str:
            return status_of(await runtime.redis.call(*claim.eval([name], args), key=name))

        assert await run(1, 4, "p:") == "created"
        assert await run(1, 4, "p:") == "agreed"
        assert await run(1, 5, "p:") == "differs"
        assert await run(2, 4, "p:") == "differs"


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
