"""Every ceiling Angarium puts on what it takes in, holds or sends at once.

A limit has a name that ends in its unit and `max`, a unit and the reason for its size, and is
set as `ANGARIUM_LIMITS__<NAME>`. This file only declares them: what happens at a limit is
decided where it is met. It imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Limit:
    """What a limit counts and why it has the size it has."""

    unit: str
    reason: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        # The settings check each limit by itself, so that an error can name it. `__post_init__`
        # sees all of them at once and is there for code that makes `Limits` directly.
        return {**handler(source), "ge": 1}


@dataclass(frozen=True)
class Limits:
    batch_items_max: Annotated[
        int,
        Limit(
            "items",
            "One script call holds up Redis, and with it everyone else, for as long as it runs; "
            "a few hundred items already spread its fixed cost thin.",
        ),
    ] = 500
    batch_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "At 1 Gbit/s this takes 8 ms to send; larger calls would hold up the small ones "
            "behind them. A larger item travels alone.",
        ),
    ] = 1 * MIB
    batch_waiting_items_max: Annotated[
        int,
        Limit(
            "items",
            "Calls that wait for Redis live in this process's memory; when Redis stalls, callers "
            "must hear of it before the memory is gone.",
        ),
    ] = 100_000
    batch_waiting_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same in bytes, for large payloads, over everything in this process that waits for "
            "an answer of Redis. A call without a payload is not refused for it.",
        ),
    ] = 128 * MIB
    frame_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A frame is held whole until its last byte is there, once per connection; its length "
            "field could claim 4 GiB.",
        ),
    ] = 1 * MIB
    http_body_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A body is held whole while it is decoded; this leaves space for a full batch of "
            "messages of several kilobytes each.",
        ),
    ] = 8 * MIB
    id_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Ids become parts of key names, which Redis keeps in memory once per key and again "
            "in every list that refers to them.",
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
            "A transaction's data is kept in Redis and travels with each step; what is larger "
            "belongs in a store of its own, with its address in the data.",
        ),
    ] = 1 * MIB
    transaction_batch_items_max: Annotated[
        int,
        Limit("items", "One request must not hold up those behind it for longer than a moment."),
    ] = 1_000
    transaction_children_items_max: Annotated[
        int,
        Limit(
            "items",
            "All children of a step start in one script, which holds up Redis meanwhile, and "
            "their results are gathered in the state of the one that waits for them.",
        ),
    ] = 1_000
    transaction_depth_items_max: Annotated[
        int,
        Limit("items", "Pipelines that call pipelines: nobody means to nest them deeper."),
    ] = 16
    transaction_longpolls_items_max: Annotated[
        int,
        Limit("items", "Each waiting request holds a connection and memory in the API process."),
    ] = 20_000

    pickup_message_bytes_max: Annotated[
        int,
        Limit("bytes", "A message waits in Redis' memory; what is larger belongs in a store."),
    ] = 512 * KIB
    pickup_payload_levels_max: Annotated[
        int,
        Limit(
            "levels",
            "Readers of JSON end at a depth of their own, some at 128; answers add a few levels.",
        ),
    ] = 100
    pickup_message_dids_max: Annotated[
        int,
        Limit("dids", "A message is listed once for each of its recipients."),
    ] = 32
    pickup_remove_messages_max: Annotated[
        int,
        Limit("messages", "One call of a script removes them all, and holds up Redis meanwhile."),
    ] = 10_000
    pickup_queue_messages_max: Annotated[
        int,
        Limit("messages", "A recipient who never comes back must not fill Redis or the disk."),
    ] = 100_000
    pickup_queue_bytes_max: Annotated[
        int,
        Limit("bytes", "The same for few but large messages."),
    ] = 256 * MIB
    pickup_take_messages_max: Annotated[
        int,
        Limit("messages", "An answer is one frame, held whole at both ends; the rest waits."),
    ] = 1_000
    pickup_take_bytes_max: Annotated[
        int,
        Limit("bytes", "The same for few but large messages."),
    ] = 8 * MIB
    pickup_sending_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Messages that a live session has and did not acknowledge; each is looked at again "
            "when the session ends.",
        ),
    ] = 10_000
    pickup_client_sessions_max: Annotated[
        int,
        Limit("sessions", "Each live session of a client costs this process about 1 KB."),
    ] = 50_000
    pickup_client_calls_max: Annotated[
        int,
        Limit("calls", "Calls of one client in one second: it can't take all of a gateway."),
    ] = 50_000
    pickup_client_buffer_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "What a client has not read yet lives in this process's memory; past this it is cut "
            "off, and its messages wait for its next session. Messages are no longer fetched for "
            "it long before.",
        ),
    ] = 32 * MIB
    pickup_batch_calls_max: Annotated[
        int,
        Limit("calls", "A batch is answered whole, so all its answers wait for the slowest."),
    ] = 1_000
    pickup_client_answer_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Messages that are fetched for a client, with those it has not read: beyond this a "
            "call waits, and a batch, which is answered whole, gets an error for the rest.",
        ),
    ] = 16 * MIB
    pickup_gateway_answer_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same for all clients of a gateway together: its memory does not grow with them.",
        ),
    ] = 128 * MIB
    pickup_client_request_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "Calls of a client that are not answered yet, each with 2 KiB for itself; beyond this "
            "the gateway does not read from the client.",
        ),
    ] = 4 * MIB
    pickup_gateway_request_bytes_max: Annotated[
        int,
        Limit("bytes", "The same for all clients of a gateway together."),
    ] = 64 * MIB
    pickup_clients_max: Annotated[
        int,
        Limit("clients", "Open sockets of one gateway; each takes a file and about 6 KB."),
    ] = 50_000
    conversation_requests_max: Annotated[
        int,
        Limit(
            "requests",
            "Requests of one conversation that wait for an answer; a client that asks faster than "
            "anybody answers must hear of it.",
        ),
    ] = 100_000
    conversation_replies_max: Annotated[
        int,
        Limit(
            "replies",
            "Replies of one conversation that wait behind each other. Places cost the same however "
            "many there are, so this only guards memory.",
        ),
    ] = 1_000_000
    conversation_queue_replies_max: Annotated[
        int,
        Limit(
            "replies",
            "Replies in one process's memory queue; a process that has so many takes no more until "
            "some have left, and others take them instead.",
        ),
    ] = 10_000
    conversation_queue_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same in bytes, for large replies. What one call fetches may go over it, by 8 MiB "
            "and one reply.",
        ),
    ] = 256 * MIB
    conversation_slow_sends_max: Annotated[
        int,
        Limit(
            "sends",
            "Sends that have lasted a second stop counting as concurrent, so that a client that "
            "hangs does not hold up the others; so many may hang before they do.",
        ),
    ] = 500

    ring_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "A dispatcher keeps what was published since the last mark that every leader has "
            "passed; this is about ten seconds at full speed, five times a lock's expiry.",
        ),
    ] = 500_000
    ring_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes, for large messages: what a dispatcher may cost."),
    ] = 256 * MIB
    ack_connections_max: Annotated[
        int,
        Limit("connections", "Each connection to the ACK port holds a file and a buffer."),
    ] = 1_000
    recip_key_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "A recipient key, or several joined by commas, becomes part of a list's name and of "
            "fields in two hashes; a few long DID keys fit.",
        ),
    ] = 2 * KIB
    relay_connections_max: Annotated[
        int,
        Limit("connections", "Each connection at a relay holds a file and a buffer."),
    ] = 10_000
    relay_connection_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Messages of one WebSocket connection that have no answer yet; at this number the "
            "relay stops to read from it until half of them have one.",
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
            "Messages of all connections that Redis has not taken yet; at this size the relay "
            "stops to read from those that bring more. As much again may be held of messages "
            "that have begun and not ended; who goes over that is refused.",
        ),
    ] = 64 * MIB
    relay_callers_max: Annotated[
        int,
        Limit(
            "callers",
            "Callers that wait for a direct response hold their connection for up to 15 s.",
        ),
    ] = 10_000
    inbox_keys_max: Annotated[
        int,
        Limit(
            "keys",
            "Keys whose mail an instance has in hand; what it has in hand comes late when it "
            "dies, and more would only wait in its memory.",
        ),
    ] = 512
    deliveries_max: Annotated[
        int,
        Limit(
            "deliveries",
            "Deliveries under way in one deliverer: enough that slow receivers do not hold up "
            "the others, few enough to end within a loan.",
        ),
    ] = 256
    deliveries_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same in bytes, as the items stand in Redis. What one call takes may go over it "
            "by one item.",
        ),
    ] = 64 * MIB
    intake_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "One request to the durable intake becomes that many items for Redis at once; what "
            "it is refused for must be known before the first one goes.",
        ),
    ] = 10_000
    transaction_switches_items_max: Annotated[
        int,
        Limit("items", "All switches of a transaction travel to its node each time it is taken."),
    ] = 100
    search_entries_max: Annotated[
        int,
        Limit(
            "entries",
            "A search reads the journal backwards, some thousand entries in a second; what is "
            "older than this is the lake's.",
        ),
    ] = 20_000
    http_connections_max: Annotated[
        int,
        Limit(
            "connections",
            "Each connection at the API holds a file and a buffer; there is space for all long "
            "polls and live views beside ordinary calls.",
        ),
    ] = 25_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1")


def described() -> Iterator[tuple[str, int, Limit]]:
    """Name, default and description of each limit, in the order they are declared."""
    hints = get_type_hints(Limits, include_extras=True)
    for field in fields(Limits):
        (limit,) = hints[field.name].__metadata__
        yield field.name, getattr(Limits, field.name), limit
