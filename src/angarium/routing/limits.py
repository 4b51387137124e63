"""The limits of this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from angarium.runtime.limits import KIB, MIB, Limit, Limits


@dataclass(frozen=True)
class RoutingLimits(Limits):
    recip_key_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A recipient key, or several separated by commas, becomes part of a list's name and of "
            "fields in two hashes. A few long DID keys fit.",
        ),
    ] = 2 * KIB
    recip_key_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Messages of one recipient key that wait to be handled. More are refused with the code "
            "queue_full: a recipient whose handler fails must not fill Redis.",
        ),
    ] = 100_000
    outbound_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Messages of a partition that wait for the deliverer or for their next attempt. More "
            "are refused with the code queue_full.",
        ),
    ] = 1_000_000
    relay_connections_max: Annotated[
        int,
        Limit("connections", "Each connection to a relay uses a file descriptor and a buffer."),
    ] = 10_000
    relay_connection_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Messages of one WebSocket connection that have no response yet. At this number the "
            "relay stops reading from the connection until half of them have one.",
        ),
    ] = 1_000
    relay_connection_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes. One message may be larger."),
    ] = 1 * MIB
    relay_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Messages of all connections that are not stored in Redis yet. At this size the relay "
            "stops reading from connections that send more. Incomplete messages may use the same "
            "amount again; beyond that they are refused.",
        ),
    ] = 64 * MIB
    relay_idle_s_max: Annotated[
        int,
        Limit(
            "seconds",
            "Between two requests of an HTTP connection, as common proxies keep theirs. The first "
            "request, and each request that has begun, has 30 s.",
        ),
    ] = 75
    relay_ws_idle_s_max: Annotated[
        int,
        Limit(
            "seconds",
            "Between two messages of a WebSocket connection; the first message has 30 s. Then the "
            "relay closes it with code 1008.",
        ),
    ] = 3_600
    relay_callers_max: Annotated[
        int,
        Limit(
            "callers",
            "A caller that waits for a direct response keeps its connection for up to 15 s.",
        ),
    ] = 10_000
    inbox_keys_max: Annotated[
        int,
        Limit(
            "keys",
            "Recipient keys whose messages one instance handles at once. If the instance dies, "
            "these messages are late, and more would only wait in its memory.",
        ),
    ] = 512
    inbox_delayed_keys_max: Annotated[
        int,
        Limit(
            "keys",
            "Recipient keys of one instance whose message waits for its next attempt. At this "
            "number the instance takes no further keys.",
        ),
    ] = 10_000
    deliveries_max: Annotated[
        int,
        Limit(
            "deliveries",
            "Deliveries in progress in one deliverer: enough that slow receivers do not delay "
            "others, few enough to end within a lease.",
        ),
    ] = 256
    deliveries_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same in bytes, as stored in Redis. One call may exceed it by one item.",
        ),
    ] = 64 * MIB
