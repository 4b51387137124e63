"""The lake's tables: their columns, types, keys and partitions, declared once.

Spark's schema, Arrow's schema and the reference page all come from here. A new column at the end of
a table is no change of its layout: old rows have null in it. Pure: nothing here opens anything, and
pyarrow is imported only where it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from angarium.lake.catalogue import OUTCOMES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Type = Literal["string", "long", "int", "boolean", "binary", "date"]


@dataclass(frozen=True)
class Column:
    name: str
    type: Type
    meaning: str


@dataclass(frozen=True)
class Table:
    """`key` are the columns by which a row is one and the same."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partition_by: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.columns]

    @property
    def _json(self) -> dict[str, Any]:
        """Its columns as Delta and Spark both write them; every column may be null."""
        kinds = {"int": "integer"}
        return {"type": "struct", "fields": [
            {"name": each.name, "type": kinds.get(each.type, each.type), "nullable": True,
             "metadata": {}}
            for each in self.columns
        ]}  # fmt: skip

    def struct(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(self._json)

    def arrow(self) -> pa.Schema:
        import pyarrow as pa
        from deltalake import Schema

        return pa.schema(Schema.from_json(json.dumps(self._json)).to_arrow())


def _columns(*rows: tuple[str, Type, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


_BATCH = Column("batch", "long", "Number of the batch that wrote the row.")
_PLACE = _columns(
    ("partition", "int", "Partition of the keyspace."),
    ("entry_id", "string", "Id of the stream's entry."),
)
_SUBJECT = _columns(
    ("partition", "int", "Partition of the keyspace."),
    ("module", "string", "Module."),
    ("account", "string", "What it is in its module: message, inbound, reply, transaction, …"),
    ("subject", "string", "Its id."),
)

# Bronze

EVENTS = Table(
    "events",
    "The journal: every event of every module, once.",
    (
        *_PLACE,
        *_columns(
            ("sequence", "long", "Running number of the event in its partition's journal."),
            ("version", "int", "Version of the journal's schema that wrote it."),
            ("module", "string", "Module that wrote it."),
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
            ("date", "date", "Day (UTC) of the transition."),
        ),
        _BATCH,
    ),
    key=("partition", "entry_id", "sequence"),
    partition_by=("date", "module"),
)
REJECTS = Table(
    "rejects",
    "Entries that could not be decoded or stored, kept as they were, and gaps of the streams.",
    (
        *_PLACE,
        *_columns(
            ("stream", "string", "journal or results."),
            ("version", "int", "Version of the schema that it names, if it names one."),
            ("at_ms", "long", "The time that it names, if it names one."),
            ("reason", "string", "Why it could not be read."),
            ("raw", "binary", "The entry's fields and values as they came, in MessagePack."),
        ),
        _BATCH,
    ),
    key=("stream", "partition", "entry_id"),
)
RESULTS = Table(
    "results",
    "The stream of results that the workers wrote.",
    (
        *_PLACE,
        *_columns(
            ("at_ms", "long", "When it was appended, ms."),
            ("message_id", "string", "Id of the message."),
            ("consumer_id", "string", "Worker that processed it."),
            ("fields", "string", "The result's own fields, as JSON."),
            ("date", "date", "Day (UTC) it was appended."),
        ),
        _BATCH,
    ),
    key=("partition", "entry_id"),
    partition_by=("date",),
)

# Silver

_MESSAGE = (
    *_SUBJECT,
    *_columns(
        ("key", "string", "Recipient key, conversation, queue, node group or channel."),
        ("owner", "string", "Owner, origin or instance."),
        ("pipeline", "string", "Pipeline of a transaction."),
        ("node", "string", "Who had it last."),
        ("reference", "string", "Detail of its acceptance; for a reply its request."),
        ("last_event", "string", "Its last event."),
        ("outcome", "string", "delivered, expired, cancelled, dead or failed; null in flight."),
        ("status", "string", "Status reported with its last end."),
        ("detail", "string", "The last reported reason: what went wrong, or why it ended."),
        ("events", "long", "Events of it, up to its end."),
        ("announces", "long", "Times it was announced: put into the durable inbox."),
        ("accepts", "long", "Times it was accepted; more than one is a doubled acceptance."),
        ("reopens", "long", "1 if it began again after an end, as a dead letter that is retried."),
        ("ends", "long", "Times it ended; more than one is a doubled end."),
        ("retries", "long", "Events that say something had to be done again."),
        ("attempts", "long", "Greatest attempt, run or step that was reported."),
        ("first_sequence", "long", "Number of its first event."),
        ("last_sequence", "long", "Number of its last event."),
        ("begin_sequence", "long", "Number of its first beginning."),
        ("begin_last_sequence", "long", "Number of its last beginning."),
        ("end_sequence", "long", "Number of its first end."),
        ("end_last_sequence", "long", "Number of its last end."),
        ("step_sequence", "long", "Number of its last step in between."),
        ("key_sequence", "long", "Number of the event that reported `key` and `pipeline`."),
        ("owner_sequence", "long", "Number of the event that reported `owner`."),
        ("node_sequence", "long", "Number of the event that reported `node`."),
        ("reference_sequence", "long", "Number of the event that reported `reference`."),
        ("detail_sequence", "long", "Number of the event that reported `detail`."),
        ("first_ms", "long", "When its first event was, ms."),
        ("accepted_ms", "long", "When it was first accepted, announced or begun again, ms."),
        ("worked_ms", "long", "When it was first taken, sent, advanced or woken, ms."),
        ("archived_ms", "long", "When it was first moved to the database, ms."),
        ("ended_ms", "long", "When it last ended, ms."),
        ("wait_ms", "long", "From acceptance to the first work, ms."),
        ("latency_ms", "long", "From acceptance to the last end, ms; null in flight."),
    ),
)
MESSAGES = Table(
    "messages",
    "Every message, request, reply and transaction that has ended, one row each.",
    (*_MESSAGE, Column("date", "date", "Day (UTC) it ended."), _BATCH),
    key=("partition", "module", "account", "subject", "begin_sequence"),
    partition_by=("date",),
)
MESSAGES_OPEN = Table(
    "messages_open",
    "Everything that is in flight, one row each: the state from which the next batch goes on.",
    (*_MESSAGE, Column("bucket", "long", "Stretch of the journal in which it began.")),
    key=("partition", "module", "account", "subject"),
    partition_by=("bucket",),
)
TRANSACTIONS = Table(
    "transactions",
    "Archived transactions: their state as JSON, and what is often asked for as columns.",
    (
        *_columns(
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
            ("date", "date", "Day (UTC) it ended."),
        ),
        _BATCH,
    ),
    key=("id",),
    partition_by=("date",),
)

# Gold


def _statistics(name: str, interval: str) -> Table:
    return Table(
        name,
        f"Counts of events in windows of {interval}, by event time.",
        _columns(
            ("start_s", "long", "Start of the window, s since 1970."),
            ("module", "string", "Module."),
            ("node_group", "string", "Node group; empty outside transactions."),
            ("pipeline", "string", "Pipeline; empty outside transactions."),
            ("owner", "string", "Owner, or empty."),
            ("event", "string", "What happened."),
            ("count", "long", "How often."),
            ("date", "date", "Day (UTC) of the window; null while it may still grow."),
        ),
        key=("start_s", "module", "node_group", "pipeline", "owner", "event"),
        partition_by=("date",),
    )


STATS_FINE = _statistics("stats_fine", "5 s")
STATS_MEDIUM = _statistics("stats_medium", "100 s")
STATS_COARSE = _statistics("stats_coarse", "1,000 s")
INTERVALS_S: Mapping[str, int] = MappingProxyType(
    {STATS_FINE.name: 5, STATS_MEDIUM.name: 100, STATS_COARSE.name: 1_000}
)
_WINDOW = _columns(
    ("start_s", "long", "Start of the window, s since 1970."),
    ("module", "string", "Module."),
    ("account", "string", "What is counted."),
)
LATENCY = Table(
    "latency",
    "How long messages took from acceptance to their end, by when they ended (windows of 100 s).",
    (
        *_WINDOW,
        *_columns(
            ("ended", "long", "Ended in this window."),
            ("delivered", "long", "Of these, delivered."),
            ("retries", "long", "Retries of these."),
            ("p50_ms", "long", "Half of them took at most so long, ms."),
            ("p95_ms", "long", "95 of 100 took at most so long, ms."),
            ("p99_ms", "long", "99 of 100 took at most so long, ms."),
            ("max_ms", "long", "The slowest, ms."),
            ("date", "date", "Day (UTC) of the window."),
        ),
    ),
    key=("start_s", "module", "account"),
    partition_by=("date",),
)
_COUNTS = _columns(
    ("accepted", "long", "Accepted in this window."),
    *((each, "long", f"Of these, {each}.") for each in OUTCOMES),
    ("in_flight", "long", "Of these, not ended, and in Redis or its database."),
    ("unexplained", "long", "Of these, neither ended nor there; or ended without a beginning."),
    ("doubled", "long", "Of these, accepted or ended more often than may be."),
    ("out_of_order", "long", "Of these, with an event where it may not be."),
    ("earlier", "long", "Ended here, begun before the lake's first event."),
)
BALANCES = Table(
    "balances",
    "The balance of what has ended, by day of its end: what an audit need not count again.",
    (
        *_WINDOW,
        *_COUNTS,
        *_columns(
            ("files", "string", "Digest of the files of `messages` it was counted from."),
            ("date", "date", "Day (UTC) of the end."),
        ),
    ),
    key=("date", "start_s", "module", "account"),
    partition_by=("date",),
)
BUSIEST = Table(
    "busiest",
    "The keys with the most messages, the slowest and the most retried, by day of the end.",
    _columns(
        ("module", "string", "Module."),
        ("account", "string", "What is counted."),
        ("key", "string", "Recipient key, conversation, queue, node group, channel or address."),
        ("messages", "long", "Messages that ended."),
        ("retries", "long", "Retries of these."),
        ("dead", "long", "Of these, dead letters."),
        ("max_ms", "long", "The slowest, ms."),
        ("date", "date", "Day (UTC) of the end."),
    ),
    key=("date", "module", "account", "key"),
    partition_by=("date",),
)
AUDIT = Table(
    "audit",
    "The balance of each window and module, one set of rows for each run of the audit.",
    (Column("audited_ms", "long", "When the audit ran, ms."), *_WINDOW, *_COUNTS),
    key=("audited_ms", "start_s", "module", "account"),
)
FINDINGS = Table(
    "findings",
    "What did not fit in an audit, one row each; a clean audit has one row without a kind.",
    _columns(
        ("audited_ms", "long", "When the audit ran, ms."),
        ("kind", "string", "unexplained, doubled, out_of_order, gap or rewound."),
        ("module", "string", "Module."),
        ("account", "string", "What it is in its module."),
        ("subject", "string", "Its id, or the missing numbers."),
        ("partition", "int", "Partition of the keyspace."),
        ("key", "string", "Recipient key, conversation, queue, node group or channel."),
        ("why", "string", "What is wrong."),
        ("events", "long", "Events in the lake when the audit ran."),
        ("rejects", "long", "Rejected entries then."),
        ("wrong", "long", "How many did not fit, named here or not."),
    ),
    key=("audited_ms", "kind", "module", "account", "subject"),
)
SEQUENCES = Table(
    "sequences",
    "Stretches of the journal's running numbers that the lake has without a gap.",
    _columns(
        ("partition", "int", "Partition of the keyspace."),
        ("first_sequence", "long", "First number of the stretch."),
        ("last_sequence", "long", "Last number of the stretch."),
        ("events", "long", "Events with these numbers; more than numbers if some came twice."),
    ),
    key=("partition", "first_sequence"),
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
JOBS = Table(
    "jobs",
    "Batches that the application's jobs have sent to streams and into modules.",
    (
        Column("job", "string", "Name of the job."),
        _BATCH,
        Column("rows", "long", "Rows that were sent."),
        Column("at_ms", "long", "When, ms by the clock of the process."),
    ),
    key=("job", "batch"),
)
TABLES: Mapping[str, Table] = MappingProxyType(
    {
        each.name: each
        for each in (
            EVENTS, REJECTS, RESULTS, MESSAGES, MESSAGES_OPEN, TRANSACTIONS, STATS_FINE,
            STATS_MEDIUM, STATS_COARSE, LATENCY, BALANCES, BUSIEST, SEQUENCES, AUDIT, FINDINGS,
            REPLAYS, JOBS,
        )
    }
)  # fmt: skip
