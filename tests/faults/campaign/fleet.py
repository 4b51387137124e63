"""The role processes of a campaign: killed, paused, and started again with the ports they had.

Each has a proxy of its own in front of Redis, where Redis is a single server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from tests.faults.campaign.schedule import FLEET
from tests.kit.ports import free_port
from tests.kit.proxy import ThreadedFaultProxy
from tests.kit.roles import RoleFailed, RoleProcess

START_S_MAX = 90.0
START_ATTEMPTS_MAX = 20
START_AGAIN_S = 0.5
STOP_S_MAX = 60.0
WATCH_S = 0.5
FULL_BYTES = 4_096  # what a process may still write to a file when its disk is «full»
TAIL_LINES = 12
_PORTS = {
    "api": "ANGARIUM_HTTP__PORT",
    "gateway": "ANGARIUM_PICKUP__PORT",
    "relay": "ANGARIUM_ROUTING__INBOUND",
}


class Member:
    """One place in the fleet. Whoever hurts it holds its lock until it is well again."""

    def __init__(self, role: str, number: int, env: Mapping[str, str], folder: Path) -> None:
        self.role = role
        self.name = f"{role} {number}"
        self.lock = asyncio.Lock()
        self.proxy: ThreadedFaultProxy | None = None
        self.port = free_port() if role in _PORTS else 0
        self._clock = folder / f"clock-{role}-{number}"
        self._log = folder / f"{role}-{number}.log"
        self._env = {**env, "CAMPAIGN_CLOCK": str(self._clock), "CAMPAIGN_VERSION": "1"}
        self._process: RoleProcess | None = None
        self.starts = 0
        self.refused_starts: list[str] = []
        self.bad_stops: list[str] = []

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """As a supervisor would: again and again, while Redis may be away."""
        for _ in range(START_ATTEMPTS_MAX):
            args = ["-m", "tests.faults.campaign.role", "serve", self.role]
            process = RoleProcess(args, self._environment(), deadline_s=START_S_MAX)
            try:
                self._process = await process.__aenter__()
                self.starts += 1
                return
            except RoleFailed as error:
                self.refused_starts.append(str(error).strip().splitlines()[-1][:300])
                await asyncio.sleep(START_AGAIN_S)
        raise RoleFailed(f"{self.name} does not start: {self.refused_starts[-1]}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self.close()

    async def deploy(self) -> None:
        """End it, and start the new version of the application."""
        await self.stop()
        self._env["CAMPAIGN_VERSION"] = "2"
        await self.start()

    async def stop(self) -> None:
        """As a supervisor does; one that does not stop well is a finding."""
        assert self._process is not None
        self._process.send(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self._process.wait, STOP_S_MAX)
            if code:
                self.bad_stops.append(f"{self.name} stopped with {code}:\n{self.last_words()}")
        except RoleFailed as error:
            self.bad_stops.append(str(error))
        self.close()

    def pause(self) -> None:
        assert self._process is not None
        self._process.pause()

    def resume(self) -> None:
        assert self._process is not None
        self._process.resume()

    def set_clock(self, wrong_s: float) -> None:
        assert self._process is not None
        self._clock.write_text(str(wrong_s))
        self._process.send(signal.SIGUSR1)

    def fill_disk(self) -> Callable[[], None]:
        """Its files can't grow; gives what undoes it. Only the soft limit moves."""
        assert self._process is not None
        pid = self._process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, hard))

        def undo() -> None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))

        return undo

    @property
    def disk_is_full(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            return self.alive and resource.prlimit(self.pid, resource.RLIMIT_FSIZE)[0] == FULL_BYTES
        return False

    def last_words(self) -> str:
        return "" if self._process is None else "\n".join(self._process.stderr()[-TAIL_LINES:])

    def close(self) -> None:
        if self._process is not None:
            with self._log.open("a") as log:
                log.write("\n".join(self._process.stderr()) + "\n---\n")
            self._process.close()

    def _environment(self) -> dict[str, str]:
        env = dict(self._env)
        if self.role in _PORTS:
            listen = json.dumps([["http", "127.0.0.1", self.port]])
            env[_PORTS[self.role]] = listen if self.role == "relay" else str(self.port)
        if self.proxy is not None:
            env["ANGARIUM_REDIS_URL"] = self.proxy.url
        # The tests' own bytecode is read, and coverage of the parent is not started.
        return {**env, "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", "")}


class Fleet:
    """All members; `redis_port` is where proxies lead, None where there are none."""

    def __init__(self, env: Mapping[str, str], folder: Path, redis_port: int | None) -> None:
        self.members = [
            Member(role, number, env, folder)
            for role, count in FLEET.items()
            for number in range(1, count + 1)
        ]
        self._redis_port = redis_port
        self._stack = AsyncExitStack()
        self.deaths: list[str] = []

    async def __aenter__(self) -> Fleet:
        async with AsyncExitStack() as stack:
            for member in self.members:
                stack.callback(member.close)
                if self._redis_port is not None:
                    # In a thread, so that a busy load slows no line that is not to be slowed.
                    proxy = ThreadedFaultProxy("127.0.0.1", self._redis_port)
                    member.proxy = stack.enter_context(proxy)
            async with asyncio.TaskGroup() as group:
                for member in self.members:
                    group.create_task(member.start())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def of(self, role: str) -> list[Member]:
        return [each for each in self.members if each.role == role]

    async def deploy(self, roles: Collection[str], pause_s: float) -> None:
        """A rolling deployment: one member after the other."""
        for member in self.members:
            if member.role not in roles:
                continue
            async with member.lock:
                if not member.alive:
                    await member.start()
                await member.deploy()
            await asyncio.sleep(pause_s)

    async def watch(self) -> None:
        """A role that ends though nobody killed it is a finding, and is started again."""
        while True:
            await asyncio.sleep(WATCH_S)
            for member in self.members:
                if member.alive or member.lock.locked():
                    continue
                async with member.lock:
                    if not member.alive:
                        self.deaths.append(f"{member.name} ended by itself:\n{member.last_words()}")
                        member.close()
                        await member.start()
