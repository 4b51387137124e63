"""Waits until a condition is true: the only file of the tests that may sleep.

`eventually` and `wait_until` check a condition at short intervals; their error contains its last
result. A condition holds when it returns a true value; an AssertionError in it means "not yet".
`Signal` does not poll: the code under test fires it, and the test waits for the n-th time.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

DEADLINE_S = 10.0
POLL_FIRST_S = 0.002
POLL_LAST_S = 0.05


class NeverTrue(AssertionError):
    """The condition did not hold within its deadline; the message tells what it last saw."""


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]],
    deadline_s: float = DEADLINE_S,
    *,
    ignoring: tuple[type[Exception], ...] = (),
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T],
    deadline_s: float = DEADLINE_S,
    *,
    ignoring: tuple[type[Exception], ...] = (),
) -> T: ...


async def eventually(
    condition: Callable[[], Any],
    deadline_s: float = DEADLINE_S,
    *,
    ignoring: tuple[type[Exception], ...] = (),
) -> Any:
    """Wait until the condition (sync or async) is true, and return what it returned.

    Errors of the types in `ignoring` also mean "not yet": a server that is restarting refuses
    connections. Any other error is raised at once.
    """
    watch = _Watch(condition, deadline_s)
    not_yet: tuple[type[Exception], ...] = (AssertionError, *ignoring)
    limit = asyncio.timeout(deadline_s)
    try:
        async with limit:
            while True:
                try:
                    found = condition()
                    value = await found if inspect.isawaitable(found) else found
                    if value:
                        return value
                    watch.saw(value)
                except not_yet as error:
                    watch.saw(error)
                await asyncio.sleep(watch.pause_s())
    except TimeoutError:
        if not limit.expired():
            raise  # the condition's own
        raise watch.failure() from watch.error


def wait_until(
    condition: Callable[[], T],
    deadline_s: float = DEADLINE_S,
    *,
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """`eventually` for tests without a loop."""
    watch = _Watch(condition, deadline_s)
    not_yet: tuple[type[Exception], ...] = (AssertionError, *ignoring)
    give_up = time.monotonic() + deadline_s
    while True:
        try:
            value = condition()
            if value:
                return value
            watch.saw(value)
        except not_yet as error:
            watch.saw(error)
        if time.monotonic() >= give_up:
            raise watch.failure() from watch.error
        time.sleep(watch.pause_s())


class Signal:
    """An event that counts, for one loop: code under test fires it, the test waits for the n-th."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def fire(self, *_: object) -> None:
        """Takes and ignores arguments, so that it can stand where a callback is wanted."""
        self.count += 1
        due = [future for n, future in self._waiting if n <= self.count]
        self._waiting = [(n, future) for n, future in self._waiting if n > self.count]
        for future in due:
            if not future.done():
                future.set_result(None)

    async def wait(self, n: int = 1, deadline_s: float = DEADLINE_S) -> None:
        """Return when it has been fired n times in all."""
        if self.count >= n:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((n, future))
        try:
            async with asyncio.timeout(deadline_s):
                await future
        except TimeoutError:
            raise NeverTrue(f"fired {self.count} of {n} times within {deadline_s} s") from None


class _Watch:
    """What one wait has seen so far, and how long to pause before the next look."""

    def __init__(self, condition: Callable[[], object], deadline_s: float) -> None:
        self._condition = condition
        self._deadline_s = deadline_s
        self._looks = 0
        self._last: object = "nothing: the first look did not come back"
        self.error: Exception | None = None

    def saw(self, value: object) -> None:
        self._looks += 1
        self._last = value
        self.error = value if isinstance(value, Exception) else None

    def pause_s(self) -> float:
        return min(POLL_LAST_S, POLL_FIRST_S * 1.5 ** min(self._looks, 20))

    def failure(self) -> NeverTrue:
        name = getattr(self._condition, "__qualname__", repr(self._condition))
        return NeverTrue(
            f"{name} did not become true within {self._deadline_s} s "
            f"({self._looks} looks); it last saw {self._last!r}"
        )
