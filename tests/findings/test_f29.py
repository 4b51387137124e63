"""F29: two gateways with databases of their own divided the archived messages between them."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from angarium.lake.presence import Open, Presence
from angarium.pickup.archive import MessageArchive
from angarium.pickup.service import PickupService
from angarium.runtime.database.identity import place_of
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.runtime import Runtime
from tests.findings.pickup_wire import (
    connected,
    environment,
    opened_store,
    status_of_queue,
    url_of,
)
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_settings
from tests.pickup.harness import DID, harness, sqlite


@pytest.mark.parametrize("role", ["gateway", "api", "archiver"])
async def test_a_role_with_another_database_does_not_start_and_names_both(
    redis_url: str, tmp_path: Path, role: str
) -> None:
    env = environment(redis_url, tmp_path)
    del env["ANGARIUM_DATABASE_URL"]  # by default it is a file in the home folder
    homes = [tmp_path / "one", tmp_path / "two"]
    envs = [{**env, "ANGARIUM_HOME": str(home)} for home in homes]
    async with RoleProcess(["serve", "gateway"], envs[0]):
        with RoleProcess(["serve", role], envs[1], ready_lines=0) as other:
            assert other.wait(30) == 2
            problem = " ".join(other.stderr())
            for home in homes:
                assert str(home) in problem
            assert "ANGARIUM_DATABASE_URL" in problem
        with RoleProcess(["serve", role], envs[0]):
            pass


async def test_a_moved_file_is_the_same_database(redis_url: str, tmp_path: Path) -> None:
    prefix = f"f{secrets.token_hex(3)}:"

    async def use(name: str) -> None:
        url = f"sqlite:///{tmp_path}/{name}.db"
        settings = sample_settings(redis_url, prefix=prefix, database_url=url)
        async with Runtime.open(settings) as runtime:
            await (await MessageArchive.of(runtime)).close()

    await use("first")
    (tmp_path / "first.db").rename(tmp_path / "second.db")
    await use("second")
    with pytest.raises(SettingInvalid, match=r"first\.db.*third\.db"):
        await use("third")


def test_the_place_of_a_database_names_no_password() -> None:
    place = place_of("postgresql://anna:secret@db.example:5432/angarium")
    assert place == "postgresql://db.example:5432/angarium"


async def test_an_operator_replaces_a_lost_database(redis_url: str, tmp_path: Path) -> None:
    """Queues forget the lost messages; those in Redis stay, in order."""
    lost = f"sqlite:///{tmp_path}/lost.db"
    async with harness(redis_url, lost) as pickup:
        await pickup.add_many(3)
        await pickup.archive_all()
        taken = await pickup.take(1)
        kept = await pickup.add_many(2)
        other = sqlite(tmp_path)
        settings = sample_settings(
            redis_url, prefix=pickup.runtime.settings.prefix, database_url=other
        )
        async with Runtime.open(settings, clock=pickup.clock) as runtime:
            service = PickupService(runtime)
            with pytest.raises(SettingInvalid):
                await service.count("default", "c1")
            assert str(tmp_path) in await service.adopt_database()
            for persister in pickup.persisters:
                await persister.release()
            async with harness(
                redis_url, other, clock=pickup.clock, prefix=runtime.settings.prefix
            ) as now:
                assert await now.count() == 2
                assert await now.count(did=DID) == 2
                assert await now.take() == kept
                assert await now.queues.remove("default:c1", [*taken, *kept]) == 2
                assert await now.store.queue_status("default:c1") is None
            await service.close()


async def test_archived_messages_of_every_size_come_back_in_order_after_a_takeover(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(
        redis_url,
        tmp_path,
        ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP="1000",
        ANGARIUM_PICKUP__GRACE_MS="100",
    )
    sizes = [1, 512 * 1024 - 2, 10, 300_000, 262_144, 2, 400_000, 1]
    async with (
        RoleProcess(["serve", "gateway"], env) as role,
        connected(url_of(role)) as sender,
        opened_store(env) as store,
    ):
        ids = [await sender.add("c1", "x" * size) for size in sizes]

        async def archived() -> bool:
            return (await status_of_queue(store, "c1")).archived == len(ids)

        await eventually(archived, 60)
        async with connected(url_of(role)) as first:
            await first.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s1"})
            heard: list[str] = []
            while len(heard) < 3:
                heard += [each["id"] for each in (await first.hear())["params"]["messages"]]
        async with connected(url_of(role)) as second:
            await second.ask("addLiveSession", {"connectionId": "c1", "sessionId": "s2"})
            heard = [m["id"] for n in second.notifications for m in n["params"]["messages"]]
            while len(heard) < len(ids):
                heard += [each["id"] for each in (await second.hear())["params"]["messages"]]
            assert heard == ids


async def test_an_audit_of_a_database_that_pickup_never_used_reports_missing_messages(
    redis_url: str, tmp_path: Path
) -> None:
    settings = sample_settings(redis_url, database_url=sqlite(tmp_path))
    async with Runtime.open(settings) as runtime:
        gone = Open(0, "pickup", "message", "m1", "default:c1", archived=True)
        assert await Presence(runtime).missing([gone]) == [gone]
