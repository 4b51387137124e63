"""What can be done with routing. HTTP, the client, the command line and the dashboard call this."""

from __future__ import annotations

from dataclasses import dataclass

from angarium.routing import keys
from angarium.routing.dead_letters import RoutingDeadLetters
from angarium.routing.envelope import decode_base64url
from angarium.routing.errors import InstanceUnknown
from angarium.routing.instances import RoutingInstance
from angarium.routing.limits import RoutingLimits
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.role_settings import routing_store
from angarium.routing.settings import RoutingSettings
from angarium.routing.store import KeyState
from angarium.runtime.errors import InputInvalid, LimitExceeded
from angarium.runtime.keyspace import Key
from angarium.runtime.outbound import check_url
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text
from angarium.runtime.trace import TRACEPARENT


@dataclass(frozen=True)
class RoutingLengths:
    """Sums over all partitions. `keys_with_mail` have messages that are not handled yet."""

    keys: int
    keys_with_mail: int
    outbound: int
    retrying: int
    in_hand: int
    dead_inbound: int
    dead_outbound: int


@dataclass(frozen=True)
class Pruned:
    """Instances that were removed, and keys that have no owner any more."""

    instances: int
    keys: int


class RoutingService:
    """One for each runtime: `runtime.store(RoutingService)`."""

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self._limits = settings.limits_of(RoutingLimits)
        self._allow_private = settings.allow_private_addresses
        self._store = runtime.store(routing_store)
        layout = settings.group(RoutingSettings).layout.value
        outbound_max = self._limits.outbound_messages_max
        self._outbound = OutboundStore(runtime, layout, messages_max=outbound_max)
        self.dead_inbound = RoutingDeadLetters(runtime, self._store, self._outbound, "inbound")
        self.dead_outbound = RoutingDeadLetters(runtime, self._store, self._outbound, "outbound")

    async def send(self, recip_key: str, payload: bytes) -> str:
        """'queued' if an instance owns the key, or 'kept' until one does; or RecipientQueueFull."""
        key_bytes_max, bytes_max = self._limits.id_bytes_max, self._limits.http_body_bytes_max
        if not 0 < len(check_text(recip_key, "recip_key").encode()) <= key_bytes_max:
            raise InputInvalid(f"a recipient key has 1 to {key_bytes_max} bytes")
        if len(payload) > bytes_max:
            raise LimitExceeded("http_body_bytes_max", len(payload), bytes_max)
        reply = await self._store.process_payload_recip_key(recip_key, payload, None)
        if reply == "full":
            raise self._store.queue_full()
        return str(reply)

    async def show(self, recip_key: str) -> KeyState:
        """The key's owner and number of pending messages. Raises RecipientUnknown."""
        return await self._store.show(check_text(recip_key, "recip_key"))

    async def instances(self) -> tuple[list[RoutingInstance], int]:
        """Every instance, and the number of keys with messages and without an owner."""
        return await self._store.instances()

    async def remove_instance(self, uid: str, *, force: bool = False) -> None:
        """Its keys lose their owner. Raises InstanceUnknown, and InstanceLive without `force`."""
        if not await self._store.remove(uid, force=force):
            raise InstanceUnknown(f"there is no instance {uid!r}")

    async def prune(self, silent_ms: int | None = None, *, idle_keys: bool = False) -> Pruned:
        """Remove instances that were silent for so long and have no messages, and forget keys that
        nobody has used for their retention; with `idle_keys` all that have no messages now."""
        removed = forgotten = passes = 0
        key_keep_ms = 0 if idle_keys else None
        while True:
            swept = await self._store.sweep(silent_ms, key_keep_ms, forget_idle=idle_keys)
            removed, forgotten = removed + swept.removed, forgotten + swept.forgotten
            passes += 1
            # A pass looks at about a hundred instances.
            if not (swept.again or swept.aging) and passes > 2 + swept.instances // 100:
                return Pruned(removed, forgotten)

    async def rebalance(self) -> int:
        """Move idle keys to instances that own fewer; returns how many moved."""
        return await self._store.rebalance()

    async def deliver(
        self, url: str, payload: str, headers: dict[str, str], trace: str | None = None
    ) -> None:
        """Queue a message, in base64url, for the deliverer."""
        check_url(url, allow_private=self._allow_private)
        try:
            data = decode_base64url(payload)
        except ValueError as error:
            raise InputInvalid(f"`payload` is not base64url: {error}") from None
        if trace and TRACEPARENT not in {name.lower() for name in headers}:
            headers = {TRACEPARENT: trace, **headers}
        if await self._outbound.push(url, data, headers) == "full":
            raise self._outbound.queue_full()

    async def owned_keys(self, partition: int, cursor: int, some: int) -> tuple[list[str], int]:
        """One page of keys that have an owner, and the next cursor; 0 after the last page.

        `some` is only a hint for Redis; a small map comes whole. A key may come twice if the map
        grows between two pages. A page costs the same with ten keys and with a million.
        """
        name = self._runtime.keyspace.name(keys.RECIP_KEY_UID, partition)
        scan = ("HSCAN", name, cursor, "COUNT", some)
        after, found = await self._runtime.redis.call(*scan, key=name)
        return [each.decode(errors="replace") for each in found[::2]], int(after)

    async def lengths(self) -> RoutingLengths:
        sums = [0] * 7
        for partition in range(self._store.partitions):

            def name(key: Key, partition: int = partition) -> str:
                return self._runtime.keyspace.name(key, partition)

            replies = await self._runtime.redis.execute(
                [
                    ("HLEN", name(keys.RECIP_KEY_UID)),
                    ("ZCARD", name(keys.MAIL)),
                    ("LLEN", name(keys.OUTBOUND)),
                    ("ZCARD", name(keys.OUTBOUND_RETRY)),
                    ("ZCARD", name(keys.OUTBOUND_LOANS)),
                    ("LLEN", name(keys.INBOUND_DEAD)),
                    ("LLEN", name(keys.OUTBOUND_DEAD)),
                ],
                key=name(keys.MAIL),
                repeatable=True,
            )
            sums = [one + int(other) for one, other in zip(sums, replies, strict=True)]
        return RoutingLengths(*sums)
