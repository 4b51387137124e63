"""What an instance reports when it releases a key: messages that ended, and one that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from angarium.routing.transitions import FinishKeyItem


class FailedAttempt(msgspec.Struct, frozen=True):
    """A message whose handler failed, to be tried again after the delay."""

    id: str
    attempts: int
    delay_ms: int
    reason: str


@dataclass(frozen=True)
class FinishedKey:
    """A key that an instance releases.

    Each ending is the id of a message and the reason if it is a dead letter, otherwise ''. The
    message that had a record of `attempts` is the first ending. `failed` follows the endings. With
    `keep` the instance goes on with the key.
    """

    recip_key: str
    endings: Sequence[tuple[str, str]]
    attempts: int = 0
    failed: FailedAttempt | None = None
    keep: bool = False


class FinishMore(msgspec.Struct, frozen=True, omit_defaults=True):
    """What most finished keys do not have, so that those cost Redis nothing."""

    attempts: int = 0
    failed: FailedAttempt | None = None
    keep: bool = False


def finish_item(done: FinishedKey) -> FinishKeyItem:
    ids = ",".join([message_id for message_id, _ in done.endings])
    dead = {message_id: reason for message_id, reason in done.endings if reason}
    reasons = msgspec.json.encode(dead) if dead else ""
    more: str | bytes = ""
    if done.attempts or done.failed is not None or done.keep:
        more = msgspec.json.encode(FinishMore(done.attempts, done.failed, done.keep))
    return FinishKeyItem(done.recip_key, len(done.endings), ids, reasons, more)
