"""Roles that are started again when they end, as a supervisor does in production."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.kit.roles import RoleProcess

CHECK_S = 0.05


class Supervisor:
    """Keeps `count` roles running: `async with Supervisor(make, 3) as supervisor`.

    `deaths` counts the roles that ended by themselves. One that a test killed or paused is given
    to `spare` first, so that it is not counted and not started again.
    """

    def __init__(self, make: Callable[[], RoleProcess], count: int) -> None:
        self._make = make
        self._count = count
        self._all: list[RoleProcess] = []
        self._watching: asyncio.Task[None] | None = None
        self.roles: list[RoleProcess] = []
        self.deaths = 0

    async def __aenter__(self) -> Self:
        try:
            for _ in range(self._count):
                self.roles.append(await self._started())
        except BaseException:
            self._close()
            raise
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await asyncio.to_thread(self._close)
        if kind is None and not self._watching.cancelled():
            self._watching.result()  # a role that could not be started again

    def spare(self, role: RoleProcess) -> RoleProcess:
        self.roles.remove(role)
        return role

    async def _watch(self) -> None:
        """A start may take long on a busy machine; the deaths of the others count meanwhile."""
        async with asyncio.TaskGroup() as group:
            while True:
                for role in [each for each in self.roles if not each.alive]:
                    self.deaths += 1
                    self.roles.remove(role)
                    group.create_task(self._replace())
                await asyncio.sleep(CHECK_S)

    async def _replace(self) -> None:
        self.roles.append(await self._started())

    async def _started(self) -> RoleProcess:
        role = self._make()
        await role.__aenter__()
        self._all.append(role)
        return role

    def _close(self) -> None:
        for role in self._all:
            role.close()
