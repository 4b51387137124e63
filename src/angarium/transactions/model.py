"""The values of this module: statuses, starts, taken transactions, checkpoints, ids and names.

No I/O. Names that appear in keys, journal rows and statistics are checked here. Scripts therefore
insert them into text without quoting.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from angarium.runtime.ids import time_ordered_hex
from angarium.runtime.urls import redacted
from angarium.transactions.errors import NameInvalid

OWNER_DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9_.@:+-]{1,128}")
_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
EXTERNAL_ID_BYTES_MAX = 256


class TransactionStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SLEEPING = "sleeping"
    SUCCESS = "success"
    FAILED = "failed"
    ABORTED = "aborted"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    INTERNAL_ERROR = "internal-error"

    @property
    def final(self) -> bool:
        return self not in _UNFINISHED


_UNFINISHED = frozenset(
    {TransactionStatus.QUEUED, TransactionStatus.RUNNING, TransactionStatus.SLEEPING}
)


@dataclass(frozen=True, slots=True)
class TransactionStart:
    """A request to start a transaction. `data` is JSON. `version` None means the newest version.

    A transaction with `admin` is served before all others of its node group.
    """

    pipeline: str
    data: bytes = b"{}"
    owner: str = OWNER_DEFAULT
    external_id: str | None = None
    version: int | None = None
    webhook: str | None = None
    progress_reports: bool = False
    poll_cancels_webhook: bool = False
    metadata: bytes = b""
    admin: bool = False

    @property
    def is_plain(self) -> bool:
        """No rarely used field is set. The check is short because every start makes it."""
        return not (
            self.metadata
            or self.external_id is not None
            or self.webhook is not None
            or self.admin
            or self.progress_reports
            or self.poll_cancels_webhook
        )

    @property
    def options(self) -> str:
        given = {"p": self.progress_reports, "c": self.poll_cancels_webhook, "a": self.admin}
        return "".join(letter for letter, is_set in given.items() if is_set)


@dataclass(frozen=True, slots=True)
class TransactionStarted:
    """`duplicate`: the externalId was in use, and `transaction_id` is its first transaction."""

    transaction_id: str
    duplicate: bool = False


class ChildResult(msgspec.Struct, frozen=True, rename="camel"):
    transaction_id: str
    status: str
    note: str = ""
    output: Any = None


class TakenTransaction(msgspec.Struct, eq=False):
    """A transaction that a node took from a queue, with the run number of this attempt."""

    id: str
    run: str
    processing_score: bytes  # the score in processingZ; no other run has the same one
    label: str  # «node group|pipeline|owner»
    version: str
    data: bytes
    remaining_ms: int
    external_id: str = ""
    checkpoint: bytes = b""
    cancel: bool = False
    switches: bytes = b""
    metadata: bytes = b""
    children: Sequence[bytes] = ()
    tries: int = 0  # failed tries of the current step
    crashes: int = 0  # of nodes that ran the current step
    needs_thread: bool = False
    flags: str = ""  # extra work at the end, in the letters of complete_transactions.lua

    @property
    def pipeline(self) -> str:
        return _label_parts(self.label)[1]

    @property
    def owner(self) -> str:
        return _label_parts(self.label)[2]


@lru_cache(maxsize=10_000)
def _label_parts(label: str) -> list[str]:
    return label.split("|")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The position of a transaction in its pipeline, written at the end of each step.

    Empty `data` means the data that the transaction was started with.
    """

    step: int = 0
    retry: int = 0
    data: bytes = b""

    def encode(self) -> bytes:
        return b"%d %d %b" % (self.step, self.retry, self.data)

    @classmethod
    def decode(cls, text: bytes) -> Checkpoint:
        if not text:
            return cls()
        step, retry, data = text.split(b" ", 2)
        return cls(int(step), int(retry), data)


NULL = msgspec.Raw(b"null")


class Transaction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The state of a transaction, from Redis or from the archive."""

    id: str
    status: TransactionStatus
    owner: str
    pipeline: str
    version: int
    node_group: str
    created_ms: int
    updated_ms: int
    external_id: str | None = None
    completed_ms: int | None = None
    notified_ms: int | None = None
    step: int = 0
    run: int = 0
    node: str | None = None
    wake_ms: int | None = None
    switch: str | None = None
    waits_for_step: str | None = None  # the next step type, when no node had it
    parent: str | None = None
    children_left: int | None = None
    note: str | None = None
    reason: str | None = None  # of a dead letter: the type of the last error, or `crashed`
    tries: int = 0  # failed tries of the current step
    crashes: int = 0  # of nodes that ran the current step
    error: str | None = None  # of the last failed try
    webhook: str | None = None
    webhook_tries: int = 0
    webhook_delivered_ms: int | None = None
    webhook_given_up_ms: int | None = None
    webhook_error: str | None = None
    data: msgspec.Raw
    metadata: msgspec.Raw
    progress: msgspec.Raw
    output: msgspec.Raw

    def without_secrets(self) -> Transaction:
        """As HTTP shows it: whoever may read a transaction may not call its webhook."""
        webhook, metadata = self.webhook, self.metadata
        if webhook is None and b"://" not in bytes(metadata):
            return self
        return msgspec.structs.replace(
            self,
            webhook=None if webhook is None else redacted(webhook),
            metadata=_with_redacted_urls(metadata),
        )


def _with_redacted_urls(metadata: msgspec.Raw) -> msgspec.Raw:
    """Clients of /datp/1.0 name the webhook in the metadata, as `webhook` or `reply`."""
    fields = msgspec.json.decode(metadata)
    if not isinstance(fields, dict):
        return metadata
    shown = {
        name: redacted(value) if isinstance(value, str) and "://" in value else value
        for name, value in fields.items()
    }
    return msgspec.Raw(msgspec.json.encode(shown))


@dataclass(frozen=True, slots=True)
class PollResult:
    """The answer to a poll. `must_record`: this is the first answer with a final status. Its
    `notified_ms` is recorded once the answer was written to the client."""

    transaction: Transaction
    must_record: bool = False


def transaction_of(id: str, fields: Mapping[bytes, bytes]) -> Transaction:
    """Decode the fields of a state in Redis."""

    def text(name: bytes) -> str | None:
        value = fields.get(name)
        return value.decode() if value else None

    def number(name: bytes) -> int | None:
        value = fields.get(name)
        return int(value) if value else None

    def raw(name: bytes) -> msgspec.Raw:
        value = fields.get(name)
        return msgspec.Raw(value) if value else NULL

    group, pipeline, owner = fields[b"label"].decode().split("|")
    created_ms = int(fields[b"created"])
    completed_ms = number(b"completed")
    sleeping, queued = fields[b"status"] == b"sleeping", fields[b"status"] == b"queued"
    return Transaction(
        id=id,
        status=TransactionStatus(fields[b"status"].decode()),
        owner=owner,
        pipeline=pipeline,
        version=int(fields[b"version"]),
        node_group=group,
        created_ms=created_ms,
        updated_ms=completed_ms
        or max(number(b"updated") or created_ms, number(b"taken") or created_ms),
        external_id=text(b"externalId"),
        completed_ms=completed_ms,
        notified_ms=number(b"notified"),
        step=number(b"step") or 0,
        run=number(b"run") or 0,
        node=text(b"node"),
        wake_ms=number(b"wake") if sleeping else None,
        switch=text(b"switch") if sleeping else None,
        waits_for_step=awaited_step(text(b"waits")) if queued else None,
        parent=text(b"parent"),
        children_left=number(b"childrenLeft"),
        note=text(b"note"),
        reason=text(b"reason"),
        tries=faults_of(text(b"faults"))[0],
        crashes=faults_of(text(b"faults"))[1],
        error=text(b"error"),
        webhook=text(b"webhook"),
        webhook_tries=number(b"hookTries") or 0,
        webhook_delivered_ms=number(b"hookDelivered"),
        webhook_given_up_ms=number(b"hookGivenUp"),
        webhook_error=text(b"hookError"),
        data=raw(b"data"),
        metadata=raw(b"metadata"),
        progress=raw(b"progress"),
        output=raw(b"output"),
    )


def faults_of(text: str | None) -> tuple[int, int]:
    """The failed tries of a step and the crashes of its nodes: «tries crashes»."""
    tries, _, crashes = (text or "0 0").partition(" ")
    return int(tries), int(crashes)


def awaited_step(waiting_list: str | None) -> str | None:
    """The step type in the name of a waiting list, «queue|node group|step type»."""
    return waiting_list.rpartition("|")[2] if waiting_list else None


def encode_step_types(step_types: Iterable[str]) -> str:
    """Step types as dequeue_transactions.lua reads them: « a b ». Names that no pipeline can have
    are left out, because a name with a space would read as two."""
    return f" {' '.join(each for each in step_types if _NAME.fullmatch(each))} "


def pairs_of(values: Sequence[bytes], first: int = 0) -> dict[bytes, bytes]:
    """Turn the flat reply {field, value, …} into a mapping."""
    return dict(zip(values[first::2], values[first + 1 :: 2], strict=True))


# Ids


def new_transaction_id(owner: str, external_id: str | None) -> str:
    """A time-ordered id. With an externalId, the last 8 characters are its routing hash."""
    id = time_ordered_hex()
    return id if external_id is None else id + external_route(owner, external_id)


def external_route(owner: str, external_id: str) -> str:
    """The routing hash that puts an externalId and its transaction into the same partition.

    One script can then read and write both.
    """
    return f"{zlib.crc32(f'{owner} {external_id}'.encode()):08x}"


def route_of(transaction_id: str) -> str:
    """The part of an id that selects the partition. Children have the partition of their parent."""
    return transaction_id.partition(".")[0][-8:]


def depth_of(transaction_id: str) -> int:
    return transaction_id.count(".")


def check_name(value: str, what: str) -> str:
    if not _NAME.fullmatch(value):
        raise NameInvalid(f"{what} {value[:80]!r}: use 1 to 128 letters, digits or any of _.@:+-")
    return value


def check_transaction_id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise NameInvalid(f"{value[:80]!r} is not a valid transaction id")
    return value


def check_external_id(value: str) -> str:
    size = len(value.encode(errors="replace"))
    if not value or size > EXTERNAL_ID_BYTES_MAX or not value.isprintable():
        raise NameInvalid(f"an externalId must have 1 to {EXTERNAL_ID_BYTES_MAX} printable bytes")
    return value
