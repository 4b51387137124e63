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
            "A dispatcher keeps acknowledgements in memory until Redis has taken them. Beyond this "
            "many it stops reading the connections that send them.",
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
