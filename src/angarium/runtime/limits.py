"""All limits on what Angarium accepts, stores in memory or sends at once.

A limit has a name that ends in its unit and `max`, a unit, and the reason for its size. It is set
as `ANGARIUM_LIMITS__<NAME>`. This file only declares limits; the code that uses a limit decides
what happens when it is reached. It imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Limit:
    """The unit of a limit, and the reason for its size."""

    unit: str
    reason: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        # The settings check each limit separately, so that an error can name it. `__post_init__`
        # checks all of them, for code that constructs `Limits` directly.
        return {**handler(source), "ge": 1}


@dataclass(frozen=True)
class Limits:
    batch_items_max: Annotated[
        int,
        Limit(
            "items",
            "Redis serves nobody else while a script runs. With a few hundred items the fixed cost "
            "of a call is already small.",
        ),
    ] = 500
    batch_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "At 1 Gbit/s this takes 8 ms to send; larger calls would delay small calls behind "
            "them. A larger item is sent alone.",
        ),
    ] = 1 * MIB
    batch_waiting_items_max: Annotated[
        int,
        Limit(
            "items",
            "Calls that wait for Redis are in this process's memory. When Redis stalls, callers "
            "get an error before the memory is full.",
        ),
    ] = 100_000
    batch_waiting_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same in bytes, for all calls of this process that wait for an answer from Redis. "
            "A call without a payload is never refused because of it.",
        ),
    ] = 128 * MIB
    frame_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Each connection buffers a frame until its last byte arrives, and the length field "
            "could announce 4 GiB.",
        ),
    ] = 1 * MIB
    http_body_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A body is in memory while it is decoded. A full batch of messages of several "
            "kilobytes each fits.",
        ),
    ] = 8 * MIB
    id_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Ids become parts of key names. Redis stores them once per key and again in every list "
            "that refers to them.",
        ),
    ] = 512
    prefix_bytes_max: Annotated[
        int,
        Limit("bytes", "The prefix is stored again in every key name."),
    ] = 64
    transaction_data_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A transaction's data is stored in Redis and sent with each step. Store larger data "
            "elsewhere and put its address in the data.",
        ),
    ] = 1 * MIB
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

    pickup_message_bytes_max: Annotated[
        int,
        Limit("bytes", "A message waits in the memory of Redis; store larger data elsewhere."),
    ] = 512 * KIB
    pickup_payload_levels_max: Annotated[
        int,
        Limit(
            "levels",
            "JSON parsers have a maximum depth, some of 128; responses add a few levels.",
        ),
    ] = 100
    pickup_message_dids_max: Annotated[
        int,
        Limit("dids", "A message is listed once for each of its recipients."),
    ] = 32
    pickup_remove_messages_max: Annotated[
        int,
        Limit("messages", "One script removes them all, and Redis serves nobody else meanwhile."),
    ] = 10_000
    pickup_queue_messages_max: Annotated[
        int,
        Limit("messages", "A recipient that never reconnects must not fill Redis or the disk."),
    ] = 100_000
    pickup_queue_bytes_max: Annotated[
        int,
        Limit("bytes", "The same for few but large messages."),
    ] = 256 * MIB
    pickup_take_messages_max: Annotated[
        int,
        Limit("messages", "A response is one frame that both ends buffer; other messages wait."),
    ] = 1_000
    pickup_take_bytes_max: Annotated[
        int,
        Limit("bytes", "The same for few but large messages."),
    ] = 8 * MIB
    pickup_sending_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Messages that were sent to a live session and not acknowledged. Each is examined "
            "again when the session ends.",
        ),
    ] = 10_000
    pickup_client_sessions_max: Annotated[
        int,
        Limit("sessions", "Each live session of a client uses about 1 KB of the gateway's memory."),
    ] = 50_000
    pickup_client_calls_max: Annotated[
        int,
        Limit("calls", "Calls of one client per second, so that one client can't use all of it."),
    ] = 50_000
    pickup_client_buffer_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Data that a client has not read yet is in the gateway's memory. At this size the "
            "gateway closes the connection, and the messages wait for the next session. It stops "
            "fetching messages for the client long before that.",
        ),
    ] = 32 * MIB
    pickup_batch_calls_max: Annotated[
        int,
        Limit("calls", "The results of a batch are sent together, so all wait for the slowest."),
    ] = 1_000
    pickup_client_answer_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Messages that are fetched for a client, and messages that it has not read. At this "
            "size a call waits, and the remaining calls of a batch get an error.",
        ),
    ] = 16 * MIB
    pickup_gateway_answer_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same for all clients of a gateway together, so that its memory is limited.",
        ),
    ] = 128 * MIB
    pickup_client_request_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Calls of a client that have no response yet, each counted with 2 KiB in addition. At "
            "this size the gateway stops reading from the client.",
        ),
    ] = 4 * MIB
    pickup_gateway_request_bytes_max: Annotated[
        int,
        Limit("bytes", "The same for all clients of a gateway together."),
    ] = 64 * MIB
    pickup_clients_max: Annotated[
        int,
        Limit("clients", "Connections to one gateway; each uses a file descriptor and about 6 KB."),
    ] = 50_000
    conversation_requests_max: Annotated[
        int,
        Limit(
            "requests",
            "Requests of one conversation that wait for a reply. A client that sends requests "
            "faster than replies come gets an error.",
        ),
    ] = 100_000
    conversation_replies_max: Annotated[
        int,
        Limit(
            "replies",
            "Replies of one conversation that wait for each other. The cost per reply does not "
            "grow with their number, so this only limits memory.",
        ),
    ] = 1_000_000
    conversation_queue_replies_max: Annotated[
        int,
        Limit(
            "replies",
            "Replies in the memory queue of one process. At this number the process takes no more "
            "until some are sent; other processes take them.",
        ),
    ] = 10_000
    conversation_queue_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same in bytes, for large replies. One fetch may exceed it by 8 MiB and one reply.",
        ),
    ] = 256 * MIB
    conversation_slow_sends_max: Annotated[
        int,
        Limit(
            "sends",
            "A send that takes longer than a second no longer counts against `concurrent`, so that "
            "a client that hangs does not delay others. This many sends may hang before they do.",
        ),
    ] = 500

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
    recip_key_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A recipient key, or several separated by commas, becomes part of a list's name and of "
            "fields in two hashes. A few long DID keys fit.",
        ),
    ] = 2 * KIB
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
    intake_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "One request to the durable intake writes this many items at once. All are checked "
            "before the first is written.",
        ),
    ] = 10_000
    transaction_switches_items_max: Annotated[
        int,
        Limit("items", "All switches of a transaction are sent to a node with each lease."),
    ] = 100
    search_entries_max: Annotated[
        int,
        Limit(
            "entries",
            "A search reads the journal backwards, some thousand entries per second. The lake has "
            "the older events.",
        ),
    ] = 20_000
    http_connections_max: Annotated[
        int,
        Limit(
            "connections",
            "Each connection to the API uses a file descriptor and a buffer. All long polls and "
            "live views fit beside ordinary calls.",
        ),
    ] = 25_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1")


def described() -> Iterator[tuple[str, int, Limit]]:
    """Name, default and description of each limit, in the order of declaration."""

    hints = get_type_hints(Limits, include_extras=True)
    for field in fields(Limits):
        (limit,) = hints[field.name].__metadata__
        yield field.name, getattr(Limits, field.name), limit
