"""The lake's tables: their columns, types, keys and partitions, declared once.

Spark's DDL, Arrow's schema and the reference page all come from here. A table's `layout` is raised
when a column changes its meaning; a new column at the end is no such change, old rows have null in
it. Pure: nothing here opens anything, and pyarrow is imported only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from angarium.lake.jobs.lifecycles import STAGES

if TYPE_CHECKING:
    import pyarrow as pa

# Raised when a table changes in a way that old readers, or old data, can't stand.
LAYOUT_VERSION = 1

Type = Literal["string", "long", "int", "boolean", "binary", "date"]


@dataclass(frozen=True)
class Column:
    name: str
    type: Type
    meaning: str


@dataclass(frozen=True)
class Table:
    """`key` are the columns by which a row is one and the same.

    With `in_parts`, each batch adds rows of its own for the keys it knows something of; readers,
    and compaction, make one row of them (`jobs/parts.py`).
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    in_parts: bool = False

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.columns]

    def ddl(self) -> str:
        return ", ".join(
            f"`{each.name}` {_SPARK.get(each.type, each.type)}" for each in self.columns
        )

    def arrow(self) -> pa.Schema:
        import pyarrow as pa

        kinds = {
            "string": pa.string(),
            "long": pa.int64(),
            "int": pa.int32(),
            "boolean": pa.bool_(),
            "binary": pa.binary(),
            "date": pa.date32(),
        }
        return pa.schema([pa.field(each.name, kinds[each.type]) for each in self.columns])


_SPARK: Mapping[str, str] = MappingProxyType({"long": "bigint"})


def _columns(*rows: tuple[str, Type, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


_PLACE = _columns(
    ("partition", "int", "Partition of the keyspace."),
    ("entry_id", "string", "Id of the stream's entry."),
)
_EVENT = _columns(
    ("sequence", "long", "Running number of the event in its partition's journal."),
    ("version", "int", "Version of the journal's schema that wrote it."),
    ("room", "string", "Module that wrote it."),
    ("at_ms", "long", "Redis time of the transition, ms."),
    ("actor", "string", "Process that made the transition."),
    ("event", "string", "What happened."),
    ("subject", "string", "To what: id of a message, transaction, instance, …"),
    ("key", "string", "Recipient key, conversation, queue, node group or channel."),
    ("owner", "string", "Owner, origin or instance."),
    ("pipeline", "string", "Pipeline of a transaction."),
    ("node", "string", "Node, gateway or consumer."),
    ("attempt", "long", "Attempt, run, step or term."),
    ("status", "string", "Status that came with it."),
    ("detail", "string", "Reason, request or other detail."),
)
EVENTS = Table(
    "events",
    "The journal: every event of every module, once.",
    (*_PLACE, *_EVENT, Column("date", "date", "Day (UTC) of the transition.")),
    key=("partition", "entry_id", "sequence"),
    partition_by=("date", "room"),
)
REJECTS = Table(
    "rejects",
    "Entries of the journal that are not ours, damaged, or of a newer schema; kept as they were.",
    _columns(
        ("partition", "int", "Partition of the keyspace."),
        ("entry_id", "string", "Id of the stream's entry."),
        ("version", "int", "Version of the schema that it names, if it names one."),
        ("at_ms", "long", "The time that it names, if it names one."),
        ("reason", "string", "Why it could not be read."),
        ("raw", "binary", "The entry's fields and values as they came, in MessagePack."),
    ),
    key=("partition", "entry_id"),
)


def _stage_columns() -> tuple[Column, ...]:
    words = {
        "accepted": "accepted, announced or begun again",
        "worked": "taken, sent, advanced or woken",
        "paused": "put off: awaited, asleep, rejected or given back",
        "ended": "finished",
        "notified": "told to somebody: long poll, webhook",
        "archived": "filed elsewhere",
    }
    return tuple(
        Column(f"{stage}_{end}_ms", "long", f"When it was {end} {words[stage]}, ms.")
        for stage in STAGES
        for end in ("first", "last")
    )


MESSAGES = Table(
    "messages",
    "One row for each message, request, reply or transaction, put together of each batch's part.",
    _columns(
        ("partition", "int", "Partition of the keyspace."),
        ("room", "string", "Module."),
        ("account", "string", "What it is in its module: message, inbound, reply, transaction, …"),
        ("subject", "string", "Its id."),
        ("key", "string", "Recipient key, conversation, queue, node group or channel."),
        ("owner", "string", "Owner, origin or instance."),
        ("pipeline", "string", "Pipeline of a transaction."),
        ("node", "string", "Who had it last."),
        ("reference", "string", "Detail of its acceptance; for a reply its request."),
        ("events", "long", "Events of it."),
        ("announces", "long", "Times it was announced: put into the durable intake."),
        ("accepts", "long", "Times it was accepted."),
        ("reopens", "long", "Times it was begun again after an end."),
        ("ends", "long", "Times it ended."),
        ("retries", "long", "Events that say something had to be done again."),
        ("attempts", "long", "Greatest attempt, run or step that was told."),
        ("first_sequence", "long", "Number of its first event."),
        ("last_sequence", "long", "Number of its last event."),
        ("begin_sequence", "long", "Number of its first beginning."),
        ("begin_last_sequence", "long", "Number of its last beginning."),
        ("end_sequence", "long", "Number of its first end."),
        ("end_last_sequence", "long", "Number of its last end."),
        ("step_sequence", "long", "Number of its last step in between."),
        ("last_event", "string", "Its last event."),
        ("outcome", "string", "delivered, expired, cancelled, dead or failed; null in flight."),
        ("status", "string", "Status told with its last end."),
        ("detail", "string", "What was told last of what went wrong, or why it ended."),
        ("wait_ms", "long", "From acceptance to the first work, ms."),
        ("latency_ms", "long", "From acceptance to the last end, ms; null in flight."),
    )
    + _stage_columns(),
    key=("partition", "room", "account", "subject"),
    partition_by=("room",),
    in_parts=True,
)
TRANSACTIONS = Table(
    "transactions",
    "Archived transactions: their state as JSON, and what is often asked for as columns.",
    _columns(
        ("id", "string", "Id of the transaction."),
        ("owner", "string", "Whose it is."),
        ("external_id", "string", "The client's own id."),
        ("pipeline", "string", "Its pipeline."),
        ("version", "long", "Version of the pipeline."),
        ("node_group", "string", "Node group that ran it."),
        ("status", "string", "How it ended."),
        ("created_ms", "long", "Started, ms."),
        ("completed_ms", "long", "Ended, ms."),
        ("state", "string", "All that is known of it, as JSON."),
    ),
    key=("id",),
)
PROCESSED = Table(
    "processed",
    "The stream of results that the workers wrote.",
    _columns(
        ("partition", "int", "Partition of the keyspace."),
        ("entry_id", "string", "Id of the stream's entry."),
        ("at_ms", "long", "When it was appended, ms."),
        ("message_id", "string", "Id of the message."),
        ("consumer_id", "string", "Worker that processed it."),
        ("fields", "string", "The result's own fields, as JSON."),
        ("date", "date", "Day (UTC) it was appended."),
    ),
    key=("partition", "entry_id"),
    partition_by=("date",),
)


def _statistics(name: str, interval: str) -> Table:
    return Table(
        name,
        f"Counts of events in windows of {interval}, by event time.",
        _columns(
            ("start_s", "long", "Start of the window, s since 1970."),
            ("room", "string", "Module."),
            ("node_group", "string", "Node group; empty outside transactions."),
            ("pipeline", "string", "Pipeline; empty outside transactions."),
            ("owner", "string", "Owner, or empty."),
            ("event", "string", "What happened."),
            ("count", "long", "How often."),
        ),
        key=("start_s", "room", "node_group", "pipeline", "owner", "event"),
        in_parts=True,
    )


STATS_FINE = _statistics("stats_fine", "5 s")
STATS_MEDIUM = _statistics("stats_medium", "100 s")
STATS_COARSE = _statistics("stats_coarse", "1,000 s")
INTERVALS_S: Mapping[str, int] = MappingProxyType(
    {STATS_FINE.name: 5, STATS_MEDIUM.name: 100, STATS_COARSE.name: 1_000}
)
AUDIT = Table(
    "audit",
    "The balance of each window and module, one set of rows for each run of the audit.",
    _columns(
        ("audited_ms", "long", "When the audit ran, ms."),
        ("start_s", "long", "Start of the window, by when a message was accepted."),
        ("room", "string", "Module."),
        ("account", "string", "What is counted."),
        ("accepted", "long", "Accepted in this window."),
        ("delivered", "long", "Of these, delivered."),
        ("expired", "long", "Of these, expired."),
        ("cancelled", "long", "Of these, cancelled."),
        ("dead", "long", "Of these, dead letters."),
        ("failed", "long", "Of these, ended with a failure of their own."),
        ("in_flight", "long", "Of these, not ended, and in Redis or its database."),
        ("unexplained", "long", "Of these, neither ended nor there; or ended without a beginning."),
        ("doubled", "long", "Of these, accepted or ended more often than may be."),
        ("out_of_order", "long", "Of these, with an event where it may not be."),
        ("earlier", "long", "Ended here, begun before the lake's first event."),
    ),
    key=("audited_ms", "start_s", "room", "account"),
)
REPLAYS = Table(
    "replays",
    "What was sent back into the modules, so that it is not sent twice.",
    _columns(
        ("replay", "string", "Name of the replay."),
        ("source", "string", "Table it came from."),
        ("id", "string", "Id of the row."),
        ("sent_as", "string", "Id it has got in the module."),
        ("at_ms", "long", "When, ms by the clock of the process."),
    ),
    key=("replay", "source", "id"),
)
TABLES: Mapping[str, Table] = MappingProxyType(
    {
        each.name: each
        for each in (
            EVENTS, REJECTS, MESSAGES, TRANSACTIONS, PROCESSED, STATS_FINE, STATS_MEDIUM,
            STATS_COARSE, AUDIT, REPLAYS,
        )
    }
)  # fmt: skip
