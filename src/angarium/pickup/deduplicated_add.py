"""Adds messages under an id that the sender chooses, so that each is added once.

Other modules and programs use it. A sender that does not know whether its message was added adds it
again; a repeat adds nothing, even if the message has been read and removed. Clients of the gateway
use `addMessage`, which chooses a new id. If the recipient has no live session, a message with a
push token schedules a notification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from angarium.pickup.archive import MessageArchive
from angarium.pickup.errors import QueueFull
from angarium.pickup.limits import PickupLimits
from angarium.pickup.message_transitions import MessageToAddOnce
from angarium.pickup.model import (
    DEFAULT_TENANT,
    DERIVED_ID_PREFIX,
    PushToken,
    check_id,
    is_tenant,
    queue_name,
)
from angarium.pickup.payload import check_payload
from angarium.pickup.push import PushScheduler
from angarium.pickup.settings import PickupSettings
from angarium.pickup.store import PickupStore
from angarium.runtime.errors import InputInvalid, LimitExceeded
from angarium.runtime.runtime import Runtime

WIRE_SPELLING = {"connectionId": "connection_id", "pushToken": "push_token"}


class PickupAddress(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a reply goes. Without a connection, the conversation's id is the connection."""

    connection_id: str | None = None
    recipients: list[str] = []
    tenant: str = DEFAULT_TENANT
    push_token: str | None = None

    @classmethod
    def read(cls, value: Any) -> PickupAddress:
        """Members may be spelled as in the HTTP API or as on the gateway's wire (`connectionId`).

        Another member is refused: a reply with a misspelt connection would go to somebody else.
        """
        if isinstance(value, Mapping):
            named = {WIRE_SPELLING.get(name, name): each for name, each in value.items()}
            if len(named) < len(value):
                raise InputInvalid("a member of the address is named twice")
            value = named
        try:
            return msgspec.convert(value or {}, cls, strict=True)
        except msgspec.MsgspecError as error:
            raise InputInvalid(f"the reply's address can't be used: {error}") from None


@dataclass(frozen=True)
class NewMessage:
    """`stands_for` is the sender's own id, such as that of a reply; the journal records it."""

    connection_id: str
    payload: bytes
    message_id: str
    recipients: Sequence[str] = ()
    tenant: str = DEFAULT_TENANT
    push_token: str | None = None
    stands_for: str = ""


# As long as a reply of a conversation may be sent again, by default.
REMEMBERED_MS = 900_000


def derived_id(*parts: str) -> str:
    """The same id for the same parts; it never equals an id of the gateway."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return DERIVED_ID_PREFIX + hashlib.sha256(text).hexdigest()[:39]


def is_derived_id(message_id: str) -> bool:
    return message_id.startswith(DERIVED_ID_PREFIX)


class DeduplicatedAdd:
    def __init__(
        self,
        runtime: Runtime,
        archive: Callable[[], Awaitable[MessageArchive]],
        remembered_ms: int = REMEMBERED_MS,
    ) -> None:
        """A repeat within `remembered_ms` adds nothing."""
        self._archive = archive
        settings, limits = runtime.settings, runtime.settings.limits_of(PickupLimits)
        self._store = runtime.store(PickupStore)
        self._remembered_ms = remembered_ms
        self._payload_bytes_max = limits.frame_bytes_max
        self._payload_levels_max = limits.pickup_payload_levels_max
        self._id_bytes_max = limits.id_bytes_max
        # The script schedules the notification with the message; the gateways send it.
        self._pushes = PushScheduler(
            settings.group(PickupSettings), limits.pickup_push_token_bytes_max
        )

    async def add(self, message: NewMessage) -> str:
        """'live' | 'offline' | 'duplicate' (still there) | 'removed' (added and removed before)."""
        # The colon divides tenant and connection, so another tenant's queue could be named.
        if not is_tenant(message.tenant):
            raise InputInvalid(f"{message.tenant!r} can't be a tenant's name")
        queue = queue_name(message.tenant, self._checked("connectionId", message.connection_id))
        recipients = [self._checked("recipientDid", each) for each in message.recipients]
        size = len(message.payload)
        if size > self._payload_bytes_max:
            raise LimitExceeded("frame_bytes_max", size, self._payload_bytes_max)
        check_payload(message.payload, self._payload_levels_max)
        dids = " ".join(recipients or [message.connection_id])
        status: str = await self._store.add_deduplicated(
            MessageToAddOnce(
                queue, message.message_id, dids, message.payload, message.stands_for,
                self._push_of(message), self._remembered_ms,
            )
        )  # fmt: skip
        if status == "queue_full":
            raise QueueFull("the connection's queue is full")
        if status == "not_in_redis":
            rows = await (await self._archive()).sizes(queue, [message.message_id])
            return "duplicate" if rows else "removed"
        return status

    def _push_of(self, message: NewMessage) -> bytes:
        if message.push_token is None:
            return b""
        return self._pushes.encoded_push(PushToken(message.push_token), None)

    def _checked(self, name: str, value: str) -> str:
        return check_id(name, value, self._id_bytes_max)
