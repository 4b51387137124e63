"""The limits of this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from angarium.runtime.limits import KIB, MIB, Limit, Limits


@dataclass(frozen=True)
class PickupLimits(Limits):
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
    pickup_push_token_bytes_max: Annotated[
        int,
        Limit("bytes", "A token is in Redis until its message is collected or notified."),
    ] = 4 * KIB
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
    pickup_unread_deliveries_max: Annotated[
        int,
        Limit(
            "deliveries",
            "Deliveries that a program with the Python client has not read. Beyond this many the "
            "client drops the oldest. Nobody has acknowledged their messages, so the next session "
            "gets them again.",
        ),
    ] = 100_000
    pickup_unread_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes of their payloads. The newest delivery is always kept."),
    ] = 64 * MIB
    pickup_tenant_clients_max: Annotated[
        int,
        Limit(
            "clients",
            "Connections of one tenant to one gateway. Set it below pickup_clients_max if a tenant "
            "must not use up the connections of the others. More are closed with code 1008.",
        ),
    ] = 50_000
    pickup_clients_max: Annotated[
        int,
        Limit("clients", "Connections to one gateway; each uses a file descriptor and about 6 KB."),
    ] = 50_000
