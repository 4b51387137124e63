"""Redis and the database of a campaign, in the three shapes that Redis comes in."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from tests.faults.campaign.schedule import Shape
from tests.kit.cluster import ClusterProcess
from tests.kit.postgres import PostgresProcess
from tests.kit.sentinel import SentinelProcess
from tests.kit.server import ServerProcess

HEAL_S_MAX = 90.0


class Servers:
    """Use as `with Servers(shape, folder) as servers:`."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        self.lock = asyncio.Lock()
        self.database_lock = asyncio.Lock()
        self._path = folder / "angarium.sqlite"
        self._stack = ExitStack()
        self._single: ServerProcess
        self._sentinel: SentinelProcess
        self._cluster: ClusterProcess
        self._postgres: PostgresProcess | None = None

    def __enter__(self) -> Servers:
        with ExitStack() as stack:
            match self.shape:
                case "single":
                    self._single = stack.enter_context(ServerProcess(aof=True, fsync="always"))
                case "sentinel":
                    self._sentinel = stack.enter_context(SentinelProcess(aof=True))
                    self._postgres = stack.enter_context(PostgresProcess())
                case "cluster":
                    cluster = ClusterProcess(replicas=True, aof=True)
                    self._cluster = stack.enter_context(cluster)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def redis_url(self) -> str:
        match self.shape:
            case "single":
                return self._single.url
            case "sentinel":
                return self._sentinel.url
            case _:
                return self._cluster.url

    @property
    def proxied_port(self) -> int | None:
        """A sentinel and a cluster tell their clients the true addresses, past any proxy."""
        return self._single.port if self.shape == "single" else None

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self._path}" if self._postgres is None else self._postgres.url

    @property
    def settings(self) -> dict[str, str]:
        replicated = self.shape != "single"
        return {
            "ANGARIUM_REDIS_URL": self.redis_url,
            "ANGARIUM_DATABASE_URL": self.database_url,
            "ANGARIUM_DURABILITY": "replica" if replicated else "local",
            "ANGARIUM_PARTITIONS": "4" if self.shape == "cluster" else "1",
        }

    # Faults

    async def kill(self, seconds: float) -> None:
        """kill -9; it comes back with what its append-only file has."""
        self._single.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._single.restart)

    async def pause(self, seconds: float) -> None:
        with self._single.paused():
            await asyncio.sleep(seconds)

    async def fail_over(self, seconds: float) -> None:
        await asyncio.to_thread(self._sentinel.failover, HEAL_S_MAX)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._sentinel.rejoin, HEAL_S_MAX)

    async def lose_node(self, place: int, seconds: float) -> None:
        """A primary of the cluster is killed, its replica takes over, and it comes back as one."""
        primaries = [each for each in self._cluster.servers if _is_primary(each)]
        lost = primaries[place % len(primaries)]
        heir = await asyncio.to_thread(self._cluster.failover, lost, HEAL_S_MAX)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(lost.restart)

        def follows() -> None:
            lost.wait_for(
                "link to the new primary",
                lambda i: i.get("master_port") == heir.port and i.get("master_link_status") == "up",
                HEAL_S_MAX,
            )

        await asyncio.to_thread(follows)

    @asynccontextmanager
    async def database_away(self) -> AsyncIterator[None]:
        """PostgreSQL killed, or somebody else writes to the SQLite file and does not end."""
        if self._postgres is not None:
            self._postgres.kill()
            try:
                yield
            finally:
                await asyncio.to_thread(self._postgres.restart)
            return
        connection = await asyncio.to_thread(self._lock_file)
        try:
            yield
        finally:
            connection.close()

    def _lock_file(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=30, isolation_level=None, check_same_thread=False
        )
        connection.execute("BEGIN EXCLUSIVE")
        return connection


def _is_primary(server: ServerProcess) -> bool:
    return server.alive and str(server.ask("ROLE")[0]) == "master"
