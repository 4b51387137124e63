"""The door for other modules: a message put in under an id of the sender's choice is there once.

A sender that does not know whether its message arrived puts it in again; nothing is doubled, even
if the first one was read and removed meanwhile. Clients of the gateway, who have no such id, use
`addMessage`. A recipient who is away gets a push notification, if the message brings a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from angarium.pickup.errors import QueueFull
from angarium.pickup.methods import PushToken
from angarium.pickup.model import DEFAULT_TENANT, LETTER_MARK, check_word, queue_name
from angarium.pickup.payload import check_payload
from angarium.pickup.push import Notes
from angarium.pickup.store import QUEUE, PickupStore
from angarium.runtime import keyspace as keys
from angarium.runtime.errors import LimitExceeded
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script

ADD_ONCE = load_script("angarium.pickup", "add_once")


class Address(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a reply goes; without a connection, to the one that has the conversation's id."""

    connection_id: str | None = None
    recipients: list[str] = []
    tenant: str = DEFAULT_TENANT
    push_token: str | None = None


@dataclass(frozen=True)
class Letter:
    """`stands_for` is what the message is elsewhere, such as a reply's id: the journal has it."""

    connection_id: str
    payload: bytes
    message_id: str
    recipients: Sequence[str] = ()
    tenant: str = DEFAULT_TENANT
    push_token: str | None = None
    stands_for: str = ""


def letter_id(*parts: str) -> str:
    """The same for the same parts, and no id that the gateway could give."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return LETTER_MARK + hashlib.sha256(text).hexdigest()[:39]


def is_letter_id(message_id: str) -> bool:
    return message_id.startswith(LETTER_MARK)


class Letterbox:
    def __init__(self, runtime: Runtime) -> None:
        settings, limits = runtime.settings, runtime.settings.limits
        self._name = runtime.keyspace.name
        self._partition_of = runtime.keyspace.partition_of
        self._payload_bytes_max = limits.frame_bytes_max
        self._payload_levels_max = limits.pickup_payload_levels_max
        self._id_bytes_max = limits.id_bytes_max
        store = PickupStore(runtime)
        # Only scheduled here, with the message; the gateways send.
        self._notes = Notes(settings.pickup)
        self._adds = runtime.batched(
            ADD_ONCE,
            lambda partition: [
                self._name(keys.PICKUP_GATEWAYS, partition),
                self._name(keys.PICKUP_AGES, partition),
                self._name(keys.PICKUP_PUSHES_DUE, partition),
                self._name(keys.PICKUP_PUSHES, partition),
            ],
            (
                limits.pickup_queue_messages_max,
                limits.pickup_queue_bytes_max,
                store.hints,
                settings.conversations.awaited_message_ttl,
            ),
        )

    async def put(self, letter: Letter) -> str:
        """'live' | 'offline' | 'duplicate' (it waits) | 'removed' (it was there before)."""
        queue = queue_name(letter.tenant, self._checked("connectionId", letter.connection_id))
        recipients = [self._checked("recipientDid", each) for each in letter.recipients]
        if len(letter.payload) > self._payload_bytes_max:
            size = len(letter.payload)
            raise LimitExceeded("frame_bytes_max", size, self._payload_bytes_max)
        check_payload(letter.payload, self._payload_levels_max)
        partition = self._partition_of(queue)
        names = (
            *(self._name(key, partition, queue) for key in QUEUE),
            self._name(keys.PICKUP_ONCE, partition, letter.message_id),
        )
        dids = " ".join(recipients or [letter.connection_id])
        push = self._push_of(letter)
        args = (queue, letter.message_id, dids, letter.payload, letter.stands_for, push)
        reply = await self._adds.submit(partition, (names, args), queue, len(letter.payload))
        status: str = reply.decode()
        if status == "queue_full":
            raise QueueFull("the connection's queue is full")
        return status

    def _push_of(self, letter: Letter) -> bytes:
        if letter.push_token is None:
            return b""
        token = PushToken(token=letter.push_token, type="fcm")
        return self._notes.note_for(token, None, letter.message_id)

    def _checked(self, name: str, value: str) -> str:
        return check_word(name, value, self._id_bytes_max)
