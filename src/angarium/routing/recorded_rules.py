"""The rule that the roles record in Redis for processes that can't read the settings."""

from __future__ import annotations

from angarium.routing import keys
from angarium.runtime.runtime import Runtime

_FIELD = "stale_after_ms"


async def record_stale_after(runtime: Runtime, stale_after_ms: int) -> None:
    """The role that started last wins."""
    name = runtime.keyspace.global_name(keys.RECORDED_RULES)
    await runtime.redis.call("HSET", name, _FIELD, stale_after_ms, key=name)


async def recorded_stale_after(runtime: Runtime) -> int | None:
    name = runtime.keyspace.global_name(keys.RECORDED_RULES)
    found = await runtime.redis.call("HGET", name, _FIELD, key=name)
    return int(found) if found and found.isdigit() else None
