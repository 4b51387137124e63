"""The runtime of a command that asks once and ends: a Redis that does not answer is told soon.

A role waits for Redis as long as the settings say; somebody at a terminal should not have to. What
the operator has set counts for commands too, and an embedded server is given its time to start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from angarium.runtime.runtime import Runtime
    from angarium.settings import Settings

# Longer than a connection over a slow line takes, shorter than anyone waits without wondering.
PATIENCE_MS = 2_000


@asynccontextmanager
async def opened() -> AsyncIterator[Runtime]:
    from angarium.runtime.runtime import Runtime
    from angarium.settings import load

    async with Runtime.open(impatient(load())) as runtime:
        yield runtime


def impatient(settings: Settings) -> Settings:
    name = "unavailable_timeout_ms"
    if settings.redis_url == "embedded" or name in settings.redis.model_fields_set:
        return settings
    redis = settings.redis.model_copy(update={name: PATIENCE_MS})
    return settings.model_copy(update={"redis": redis})
