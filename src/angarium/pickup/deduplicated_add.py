"""Adds messages under an id that the sender chooses, so that each is added once.

Other modules and programs use it. A sender that does not know whether its message was added adds it
again; a repeat adds nothing, even if the message has been read and removed. Clients of the gateway
use `addMessage`, which chooses a new id. If the recipient has no live session, a message with a
push token schedules a notification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from angarium.pickup import keys
from angarium.pickup.errors import QueueFull
from angarium.pickup.limits import PickupLimits
from angarium.pickup.model import (
    DEFAULT_TENANT,
    DERIVED_ID_PREFIX,
    PushToken,
    check_id,
    queue_name,
)
from angarium.pickup.payload import check_payload
from angarium.pickup.push import PushScheduler
from angarium.pickup.queue_keys import QueueKeys
from angarium.pickup.settings import PickupSettings
from angarium.runtime.errors import LimitExceeded
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script

ADD = load_script("angarium.pickup", "add_deduplicated")


class PickupAddress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a reply goes. Without a connection, the conversation's id is the connection."""

    connection_id: str | None = None
    recipients: list[str] = []
    tenant: str = DEFAULT_TENANT
    push_token: str | None = None


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
    def __init__(self, runtime: Runtime, remembered_ms: int = REMEMBERED_MS) -> None:
        """A repeat within `remembered_ms` adds nothing."""
        settings, limits = runtime.settings, runtime.settings.limits_of(PickupLimits)
        self._keys = QueueKeys(runtime)
        self._payload_bytes_max = limits.frame_bytes_max
        self._payload_levels_max = limits.pickup_payload_levels_max
        self._id_bytes_max = limits.id_bytes_max
        # The script schedules the notification with the message; the gateways send it.
        self._pushes = PushScheduler(settings.group(PickupSettings))
        self._adds = runtime.batched(
            ADD,
            self._keys.of_partition(
                keys.PICKUP_GATEWAYS, keys.PICKUP_AGES, keys.PICKUP_PUSHES_DUE, keys.PICKUP_PUSHES
            ),
            (
                limits.pickup_queue_messages_max,
                limits.pickup_queue_bytes_max,
                self._keys.hint_channel,
                remembered_ms,
            ),
        )

    async def add(self, message: NewMessage) -> str:
        """'live' | 'offline' | 'duplicate' (still there) | 'removed' (added and removed before)."""
        queue = queue_name(message.tenant, self._checked("connectionId", message.connection_id))
        recipients = [self._checked("recipientDid", each) for each in message.recipients]
        size = len(message.payload)
        if size > self._payload_bytes_max:
            raise LimitExceeded("frame_bytes_max", size, self._payload_bytes_max)
        check_payload(message.payload, self._payload_levels_max)
        partition = self._keys.partition_of(queue)
        once = self._keys.name(keys.PICKUP_ONCE, partition, message.message_id)
        dids = " ".join(recipients or [message.connection_id])
        push = self._push_of(message)
        args = (queue, message.message_id, dids, message.payload, message.stands_for, push)
        item = ((*self._keys.of(queue), once), args)
        status: str = (await self._adds.submit(partition, item, queue, size)).decode()
        if status == "queue_full":
            raise QueueFull("the connection's queue is full")
        return status

    def _push_of(self, message: NewMessage) -> bytes:
        if message.push_token is None:
            return b""
        return self._pushes.encoded_push(PushToken(message.push_token), None, message.message_id)

    def _checked(self, name: str, value: str) -> str:
        return check_id(name, value, self._id_bytes_max)
