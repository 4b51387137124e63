"""The limits of this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from angarium.runtime.limits import MIB, Limit, Limits


@dataclass(frozen=True)
class TransactionsLimits(Limits):
    transaction_data_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A transaction's data is stored in Redis and sent with each step. Store larger data "
            "elsewhere and put its address in the data.",
        ),
    ] = 1 * MIB
    transaction_queue_items_max: Annotated[
        int,
        Limit(
            "items",
            "New transactions of a node group that wait in one partition; each takes about 400 "
            "bytes of Redis and its data. More are refused with the code queue_full.",
        ),
    ] = 1_000_000
    transaction_batch_items_max: Annotated[
        int,
        Limit("items", "One request must not delay the requests behind it noticeably."),
    ] = 1_000
    transaction_children_items_max: Annotated[
        int,
        Limit(
            "items",
            "One script starts all children of a step, and Redis serves nobody else meanwhile. The "
            "state of the waiting transaction collects their results.",
        ),
    ] = 1_000
    transaction_depth_items_max: Annotated[
        int,
        Limit("items", "Pipelines that call pipelines; deeper nesting is likely unintended."),
    ] = 16
    transaction_longpolls_items_max: Annotated[
        int,
        Limit("items", "Each waiting request uses a connection and memory of the API process."),
    ] = 20_000
    transaction_stream_events_max: Annotated[
        int,
        Limit(
            "events",
            "Events of a transaction that a client of its event stream has not read. Beyond this "
            "many the oldest are left out; each event carries the state, so the newest is enough.",
        ),
    ] = 1_000
    transaction_switches_items_max: Annotated[
        int,
        Limit("items", "All switches of a transaction are sent to a node with each lease."),
    ] = 100
