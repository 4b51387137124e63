"""Opens the runtime of a short command, which reports an unavailable Redis quickly.

A role waits for Redis as long as the settings say; a command waits 2 s. A value set by the operator
applies to commands too, and an embedded server gets its time to start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from angarium.runtime.runtime import Runtime
    from angarium.settings import Settings

# Longer than connecting over a slow network takes.
UNAVAILABLE_TIMEOUT_MS = 2_000


@asynccontextmanager
async def open_runtime() -> AsyncIterator[Runtime]:
    from angarium.cli.installation import load_installation
    from angarium.runtime.runtime import Runtime

    async with Runtime.open(with_short_timeout(load_installation())) as runtime:
        yield runtime


def with_short_timeout(settings: Settings) -> Settings:
    name = "unavailable_timeout_ms"
    if settings.redis_url == "embedded" or name in settings.redis.model_fields_set:
        return settings
    redis = settings.redis.model_copy(update={name: UNAVAILABLE_TIMEOUT_MS})
    return settings.model_copy(update={"redis": redis})
