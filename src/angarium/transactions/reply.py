"""The reply about a transaction as existing clients and webhook receivers read it.

Pure: `{metadata: {…}, progressReport, data}` in the spelling of `/datp/1.0`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from angarium.transactions.model import NULL, Status, Transaction


class ReplyMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    owner: str
    tx_id: str
    transaction_type: str
    status: str
    external_id: str | None = None
    note: str | None = None
    completion_time: str | None = None
    last_updated: str | None = None
    notified_time: str | None = None


class Reply(msgspec.Struct, frozen=True, rename="camel"):
    """`data` is the output once the transaction has ended, and null before."""

    metadata: ReplyMetadata
    progress_report: msgspec.Raw
    data: msgspec.Raw


def reply_about(transaction: Transaction) -> Reply:
    ended = transaction.status.final
    # Clients of this spelling know no `queued`: to them a transaction runs from its start.
    status = Status.RUNNING if transaction.status is Status.QUEUED else transaction.status
    return Reply(
        ReplyMetadata(
            owner=transaction.owner,
            tx_id=transaction.id,
            transaction_type=transaction.pipeline,
            status=status.value,
            external_id=transaction.external_id,
            note=transaction.note,
            completion_time=_time(transaction.completed_ms),
            last_updated=_time(transaction.updated_ms),
            notified_time=_time(transaction.notified_ms),
        ),
        progress_report=transaction.progress,
        data=transaction.output if ended else NULL,
    )


def _time(ms: int | None) -> str | None:
    return None if ms is None else f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=1_000)
def _second(seconds: int) -> str:
    """RestartingTask, because all replies of a moment share it, and a calendar is slow."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
