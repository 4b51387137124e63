"""A primary, a replica, and sentinels that watch over them.

Timings are short: a failover takes two or three seconds instead of half a minute.
"""

from __future__ import annotations

import contextlib
from typing import Self

from tests.kit.eventually import wait_until
from tests.kit.server import UNREACHABLE, ServerProcess, replica_of

NAME = "mymaster"
DOWN_AFTER_MS = 600
FAILOVER_TIMEOUT_MS = 1_000
DEADLINE_S = 30.0
# How often a sentinel asks and tells; its own 1 s, 2 s and 10 s make a failover slow. Five
# ping periods must be longer than the second between its looks at a replica whose primary is
# down: it takes no replica it has not heard of for so long.
PERIODS_MS = {"ping-period": 400, "ask-period": 200, "publish-period": 200, "info-period": 200}


class SentinelProcess:
    """Use as `with SentinelProcess() as group:`. `primary` and `replica` follow a failover."""

    def __init__(self, sentinels: int = 3, *, aof: bool = False) -> None:
        self._count = sentinels
        self._aof = aof
        self._stack = contextlib.ExitStack()
        self.primary: ServerProcess
        self.replica: ServerProcess
        self.sentinels: list[ServerProcess] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.primary = stack.enter_context(ServerProcess(aof=self._aof))
            self.replica = stack.enter_context(replica_of(self.primary, aof=self._aof))
            self.sentinels = [self._watch(stack) for _ in range(self._count)]
            wait_until(lambda: all(map(self._is_set_up, self.sentinels)), DEADLINE_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{NAME}"

    def primary_port(self, sentinel: ServerProcess) -> int:
        """Where this sentinel sends its clients."""
        return int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])

    def failover(self, deadline_s: float = DEADLINE_S) -> ServerProcess:
        """kill -9 the primary and wait until all sentinels name the new one; returns that."""
        lost, new_primary = self.primary, self.replica
        lost.kill()
        watching = [sentinel for sentinel in self.sentinels if sentinel.alive]
        wait_until(
            lambda: all(self.primary_port(sentinel) == new_primary.port for sentinel in watching),
            deadline_s,
            ignoring=UNREACHABLE,
        )
        new_primary.wait_for("role:master", lambda info: info["role"] == "master", deadline_s)
        self.primary, self.replica = new_primary, lost
        return new_primary

    def rejoin(self, deadline_s: float = DEADLINE_S) -> ServerProcess:
        """Start the killed one again and wait until it follows the new primary."""
        back = self.replica
        back.restart()
        port = self.primary.port
        back.wait_for(
            "link to the new primary",
            lambda i: i.get("master_port") == port and i.get("master_link_status") == "up",
            deadline_s,
        )
        return back

    def _watch(self, stack: contextlib.ExitStack) -> ServerProcess:
        quorum = self._count // 2 + 1
        config = {
            "sentinel monitor": f"{NAME} 127.0.0.1 {self.primary.port} {quorum}",
            "sentinel down-after-milliseconds": f"{NAME} {DOWN_AFTER_MS}",
            "sentinel failover-timeout": f"{NAME} {FAILOVER_TIMEOUT_MS}",
        }
        sentinel = stack.enter_context(ServerProcess(sentinel=True, config=config))
        for name, value in PERIODS_MS.items():
            sentinel.ask("SENTINEL", "DEBUG", name, value)
        return sentinel

    def _is_set_up(self, sentinel: ServerProcess) -> bool:
        """It knows the replica and the other sentinels; before that it could not fail over."""
        flat = sentinel.ask("SENTINEL", "MASTER", NAME)
        state = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        others = int(state["num-other-sentinels"])
        return int(state["num-slaves"]) >= 1 and others == self._count - 1
