"""How many bytes a client, and all clients of a gateway, may keep in this process. Pure.

A `Budget` counts what goes to clients: messages that are being fetched, answers that wait for the
rest of their batch, frames that were not read. Who wants to fetch asks first and gets its share in
the order of asking. `Requests` counts what comes from clients: calls without an answer yet. A
client beyond its limit is not read from until enough is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

# A call costs this much beside its parameters: objects of ours, a task, a place in a batch.
CALL_BYTES = 2_048
ASKED, CROWDED, UNREAD = 1, 2, 4
"""Why a client is not read from: its own calls, everybody's calls, what it has not read."""

Granted = Callable[[], object]


class Budget:
    """Bytes of one client, as a part of the gateway's; or the gateway's, without a `whole`.

    Something larger than the whole budget is granted when nothing else is held.
    """

    __slots__ = ("_later", "_waiting", "_whole", "bytes_max", "held")

    def __init__(
        self, bytes_max: int, later: Callable[[Granted], object], whole: Budget | None = None
    ) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self._later = later
        self._whole = whole
        self._waiting: list[tuple[int, Granted]] = []

    def charge(self, size: int) -> None:
        """Count what is there already, whether it fits or not."""
        self.held += size
        if self._whole is not None:
            self._whole.charge(size)

    def release(self, size: int) -> None:
        self.held -= size
        if self._whole is not None:
            self._whole.release(size)
        while self._waiting and self._has_space(self._waiting[0][0]):
            first, granted = self._waiting.pop(0)
            # Not from within the caller, who may be in the middle of something, and not nested.
            self._pass_on(first, partial(self._later, granted))

    def request(self, size: int, granted: Granted) -> None:
        """Charge it and call `granted`: at once, or when enough was released."""
        if self._waiting or not self._has_space(size):
            self._waiting.append((size, granted))
        else:
            self._pass_on(size, granted)

    def charge_if_free(self, size: int) -> bool:
        """Charge it only if nobody has to wait for that."""
        if self._waiting or not self._has_space(size):
            return False
        if self._whole is not None and not self._whole.charge_if_free(size):
            return False
        self.held += size
        return True

    def _has_space(self, size: int) -> bool:
        return self.held <= 0 or self.held + size <= self.bytes_max

    def _pass_on(self, size: int, granted: Granted) -> None:
        self.held += size
        if self._whole is None:
            granted()
        else:
            self._whole.request(size, granted)


class Caller(Protocol):
    """A client's socket, as far as its calls are counted."""

    asked: int

    def hold(self, reason: int) -> None: ...
    def let_go(self, reason: int) -> None: ...


class Requests:
    """Calls without an answer, of every client and of all together."""

    def __init__(self, client_bytes_max: int, gateway_bytes_max: int) -> None:
        self._client_max = client_bytes_max
        self._gateway_max = gateway_bytes_max
        self._crowded: set[Caller] = set()
        self.held = 0

    def begin(self, caller: Caller, size: int) -> None:
        caller.asked += size
        self.held += size
        if caller.asked > self._client_max:
            caller.hold(ASKED)
        if self.held > self._gateway_max:
            self._crowded.add(caller)
            caller.hold(CROWDED)

    def end(self, caller: Caller, size: int) -> None:
        caller.asked -= size
        self.held -= size
        if caller.asked <= self._client_max // 2:
            caller.let_go(ASKED)
        if self._crowded and self.held <= self._gateway_max // 2:
            crowded, self._crowded = self._crowded, set()
            for each in crowded:
                each.let_go(CROWDED)
