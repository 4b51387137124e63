"""Which deliveries may be under way: so many to one receiver, so that none takes all places.

Pure: the caller brings the time. Work for a receiver that has no place free waits in its lane; a
receiver whose requests hang is slow, and what waits for it is handed back to be queued again, so
that its messages do not keep those of others from being taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Work = TypeVar("Work")

# More connections to one receiver cost more than they bring, here and there.
ACTIVE_MAX = 32
# A receiver that has not answered for so long is not waited for by others.
SLOW_AFTER_S = 1.0


@dataclass
class _Lane(Generic[Work]):
    began_s: deque[float] = field(default_factory=deque)  # of those under way, oldest first
    waiting: deque[Work] = field(default_factory=deque)

    def slow(self, now_s: float) -> bool:
        return bool(self.began_s) and now_s - self.began_s[0] > SLOW_AFTER_S


class Lanes(Generic[Work]):
    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[Work]] = {}

    def offer(self, receiver: str, work: Work, now_s: float) -> bool:
        """Whether it may begin now; otherwise it waits in its lane."""
        lane = self._lanes.setdefault(receiver, _Lane())
        if len(lane.began_s) < ACTIVE_MAX:
            lane.began_s.append(now_s)
            return True
        lane.waiting.append(work)
        return False

    def ended(self, receiver: str, now_s: float) -> Work | None:
        """A delivery is over; the next one of its lane, which begins now, if there is one."""
        lane = self._lanes[receiver]
        # Which of them ended does not matter: that the oldest is taken off makes a receiver
        # look fast as long as any of its requests end.
        lane.began_s.popleft()
        if lane.waiting:
            lane.began_s.append(now_s)
            return lane.waiting.popleft()
        if not lane.began_s:
            del self._lanes[receiver]
        return None

    def stuck(self, now_s: float) -> list[Work]:
        """What waits for slow receivers, taken out of their lanes."""
        found: list[Work] = []
        for lane in self._lanes.values():
            if lane.waiting and lane.slow(now_s):
                found += lane.waiting
                lane.waiting.clear()
        return found

    def drain(self) -> list[Work]:
        """All that has not begun."""
        found = [work for lane in self._lanes.values() for work in lane.waiting]
        for lane in self._lanes.values():
            lane.waiting.clear()
        return found
