"""What server this is, what it can do, and whether it can be trusted with messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from angarium.redis.errors import ScriptFailed, ServerUnsettled, ServerUnsuitable
from angarium.redis.options import Durability, RedisOptions

OLDEST = (7, 0, 0)
WAITAOF_SINCE = (7, 2, 0)
# A server that came up this lately may still be reading its files or its primary's.
YOUNG_S = 30


@dataclass(frozen=True)
class ServerInfo:
    flavour: Literal["redis", "valkey"]
    version: tuple[int, ...]
    """Its own version; Valkey has every command of ours since its first, which is newer."""
    cluster: bool
    eviction_policy: str
    memory_bytes_max: int
    aof: bool
    fsync: str | None
    """Its appendfsync; None where we may not ask."""
    replicas: int
    young: bool
    """It came up just now, so what it lacks may still come."""

    @property
    def waitaof(self) -> bool:
        return self.version >= WAITAOF_SINCE

    @property
    def local(self) -> bool:
        """It can tell that a write is on its disk: when asked, or by replying only then."""
        return self.aof and (self.waitaof or self.fsync == "always")

    def __str__(self) -> str:
        return f"{self.flavour.capitalize()} {'.'.join(map(str, self.version))}"

    def check(self, options: RedisOptions) -> None:
        """Raise `ServerUnsuitable` when this server would lose what we promise to keep."""
        url = options.names.url
        if self.version < OLDEST:
            raise ServerUnsuitable(url, f"{self} is too old", "use Redis or Valkey 7.0 or newer")
        if self.cluster and "+cluster://" not in options.url:
            raise ServerUnsuitable(
                url, "the server is part of a cluster", "use redis+cluster:// for it"
            )
        if self.eviction_policy != "noeviction" and self.memory_bytes_max > 0:
            raise ServerUnsuitable(
                url,
                f"its maxmemory-policy {self.eviction_policy} would drop messages",
                "set maxmemory-policy to noeviction on the server",
            )
        self._check_durability(options)

    def _check_durability(self, options: RedisOptions) -> None:
        name = options.names.durability
        if options.durability is Durability.LOCAL:
            if not self.aof:
                lacking = ServerUnsettled if self.young else ServerUnsuitable
                raise lacking(
                    name,
                    "'local' needs the append-only file, and the server has it off",
                    "set appendonly yes on the server, or choose memory",
                )
            if not self.local:
                raise ServerUnsuitable(
                    name,
                    f"'local' needs WAITAOF, which {self} lacks",
                    "set appendfsync always on the server, or use Redis 7.2 or Valkey",
                )
        if options.durability is Durability.REPLICA and self.replicas == 0:
            raise ServerUnsettled(
                name,
                "'replica' needs a connected replica, and the server has none",
                "attach one, or choose local or memory",
            )


async def read_server_info(call: Callable[..., Awaitable[Any]]) -> ServerInfo:
    """Ask one server; `call` sends a command to it."""
    fields: dict[str, str] = {}
    for line in (await call("INFO")).decode().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name] = value
    flavour: Literal["redis", "valkey"] = "redis"
    if "valkey_version" in fields or fields.get("server_name") == "valkey":
        flavour = "valkey"
    return ServerInfo(
        flavour=flavour,
        version=_version(fields.get("valkey_version") or fields.get("redis_version", "0")),
        cluster=fields.get("cluster_enabled") == "1",
        eviction_policy=fields.get("maxmemory_policy", "noeviction"),
        memory_bytes_max=int(fields.get("maxmemory", 0)),
        aof=fields.get("aof_enabled") == "1",
        fsync=await _fsync(call),
        replicas=int(fields.get("connected_slaves", 0)),
        young=int(fields.get("uptime_in_seconds", YOUNG_S)) < YOUNG_S,
    )


async def _fsync(call: Callable[..., Awaitable[Any]]) -> str | None:
    try:
        reply = await call("CONFIG", "GET", "appendfsync")
    except (ScriptFailed, ServerUnsuitable):
        return None  # Hosted servers keep CONFIG to themselves.
    return reply[1].decode() if reply else None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
