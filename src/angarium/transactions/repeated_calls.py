"""Calls that a node repeats while Redis is unreachable: it would lose the outcome of a step.

Every such call is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from angarium.redis.backoff import Backoff
from angarium.runtime.clock import Clock
from angarium.runtime.errors import NotDurable, OutcomeUnknown, Overloaded, RedisUnavailable
from angarium.runtime.log import logger

TEMPORARY = (RedisUnavailable, OutcomeUnknown, NotDurable, Overloaded)


class RepeatedCalls:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = logger("angarium.node")

    async def until_answered(self, call: Callable[[], Awaitable[Any]]) -> Any:
        backoff: Backoff | None = None
        while True:
            try:
                return await call()
            except TEMPORARY as error:
                backoff = backoff or Backoff()
                self._log.warning("redis_awaited", error=str(error))
                await self._clock.sleep(backoff.next_delay_s())
