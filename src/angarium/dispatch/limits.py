"""The limits of this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from angarium.runtime.limits import MIB, Limit, Limits


@dataclass(frozen=True)
class DispatchLimits(Limits):
    ring_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "A dispatcher keeps the messages published since the last epoch marker that every "
            "leader has passed. This is about ten seconds at full speed, five times the expiry of "
            "a lock.",
        ),
    ] = 500_000
    ring_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes, for large messages."),
    ] = 256 * MIB
    ack_connections_max: Annotated[
        int,
        Limit("connections", "Each connection to the ACK port uses a descriptor and a buffer."),
    ] = 1_000
    ack_waiting_max: Annotated[
        int,
        Limit(
            "items",
            "A dispatcher keeps acknowledgements in memory until Redis has taken them, and as many "
            "renewals. Beyond this many it stops reading the connections that send them.",
        ),
    ] = 20_000
    accept_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "A leader keeps published messages of a partition in memory until Redis has accepted "
            "them. Beyond this many it reads them again from the ring, once Redis accepts.",
        ),
    ] = 50_000
    accept_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes, for large messages."),
    ] = 64 * MIB
    received_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Published messages that a dispatcher has read and not handled. Beyond this many it "
            "stops reading, and Redis buffers up to its own limit.",
        ),
    ] = 200_000
    received_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes, for large messages."),
    ] = 64 * MIB
    ready_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Accepted messages that a leader has in memory for the next free slots. The others "
            "wait in Redis.",
        ),
    ] = 20_000
    ready_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes, for large messages."),
    ] = 64 * MIB
    worker_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Messages that wait in a worker for its function. It gives those beyond back to the "
            "dispatcher.",
        ),
    ] = 64 * MIB
    worker_connections_max: Annotated[
        int,
        Limit(
            "connections",
            "Each dispatcher opens one connection to a worker. More connections than this are "
            "closed at once.",
        ),
    ] = 1_000
    intake_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "One request to the durable intake writes this many items at once. All are checked "
            "before the first is written.",
        ),
    ] = 10_000
    result_search_entries_max: Annotated[
        int,
        Limit(
            "entries",
            "A result is looked up by reading the stream of results from its newest entry, about "
            "a millisecond of Redis for a thousand entries. Older ones are not found.",
        ),
    ] = 200_000
