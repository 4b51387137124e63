"""Limits the deliveries under way to each host, so that one host can't use all of them.

Pure: the caller passes the time. Work beyond the limit of its host waits here. When the requests to
a host hang, the host is slow, and the caller takes the waiting work back and queues it again. So
messages for a slow host do not keep the deliverer from taking others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Work = TypeVar("Work")

# More connections to one host cost more than they bring, on both sides.
ACTIVE_MAX = 32
# A host is slow when its oldest request has taken longer than this.
SLOW_AFTER_S = 1.0


@dataclass
class _HostState(Generic[Work]):
    started_s: deque[float] = field(default_factory=deque)  # of active deliveries, oldest first
    waiting: deque[Work] = field(default_factory=deque)

    def slow(self, now_s: float) -> bool:
        return bool(self.started_s) and now_s - self.started_s[0] > SLOW_AFTER_S


class HostLimiter(Generic[Work]):
    def __init__(self) -> None:
        self._hosts: dict[str, _HostState[Work]] = {}

    def __len__(self) -> int:
        """Hosts with deliveries under way."""
        return len(self._hosts)

    def start(self, host: str, work: Work, now_s: float) -> bool:
        """Whether the delivery may start now; otherwise it waits here."""
        state = self._hosts.setdefault(host, _HostState())
        if len(state.started_s) < ACTIVE_MAX:
            state.started_s.append(now_s)
            return True
        state.waiting.append(work)
        return False

    def finish(self, host: str, now_s: float) -> Work | None:
        """A delivery has ended; the next one for its host, which starts now, if there is one."""
        state = self._hosts[host]
        # It does not matter which delivery ended. Removing the oldest start time makes a host look
        # fast as long as any of its requests end.
        state.started_s.popleft()
        if state.waiting:
            state.started_s.append(now_s)
            return state.waiting.popleft()
        if not state.started_s:
            del self._hosts[host]
        return None

    def remove_waiting_for_slow(self, now_s: float) -> list[Work]:
        return self._remove_waiting([each for each in self._hosts.values() if each.slow(now_s)])

    def remove_waiting(self) -> list[Work]:
        return self._remove_waiting(list(self._hosts.values()))

    def _remove_waiting(self, states: list[_HostState[Work]]) -> list[Work]:
        found: list[Work] = []
        for state in states:
            found += state.waiting
            state.waiting.clear()
        return found
