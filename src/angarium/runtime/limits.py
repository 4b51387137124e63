"""Limits on what Angarium accepts, stores in memory or sends at once: those of all modules.

A limit has a name that ends in its unit and `max`, a unit, and the reason for its size. It is set
as `ANGARIUM_LIMITS__<NAME>`. A module declares its own limits in its `limits.py`, as a subclass of
`Limits`; the code that uses a limit decides what happens when it is reached. These files import
only the standard library.
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
    search_entries_max: Annotated[
        int,
        Limit(
            "entries",
            "A search reads the journal backwards, some thousand entries per second. The lake has "
            "the older events.",
        ),
    ] = 20_000
    search_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes: an entry of the journal may hold a large batch."),
    ] = 64 * MIB
    search_events_max: Annotated[
        int,
        Limit(
            "events",
            "The oldest events of a history are shown; a busy recipient may have millions.",
        ),
    ] = 2_000
    search_related_ids_max: Annotated[
        int,
        Limit("ids", "A search follows related ids; a conversation may have thousands of them."),
    ] = 200
    subscription_messages_max: Annotated[
        int,
        Limit(
            "messages",
            "Notices of a channel that this process has read and not handled. Beyond this many it "
            "stops reading. Redis buffers up to its own limit, then disconnects the reader, which "
            "subscribes again and reads the state anew.",
        ),
    ] = 100_000
    subscription_bytes_max: Annotated[
        int,
        Limit("bytes", "The same in bytes."),
    ] = 64 * MIB
    outbound_connections_max: Annotated[
        int,
        Limit(
            "connections",
            "Requests to webhooks, recipients and push services that run at the same time in one "
            "role. Further ones wait, up to their time-out.",
        ),
    ] = 512
    outbound_host_connections_max: Annotated[
        int,
        Limit("connections", "The same for one host, so that a slow one can't take all of them."),
    ] = 64
    http_connections_max: Annotated[
        int,
        Limit(
            "connections",
            "Each connection to the API uses a file descriptor and a buffer. All long polls and "
            "live views fit beside ordinary calls.",
        ),
    ] = 25_000
    live_clients_max: Annotated[
        int,
        Limit(
            "clients",
            "Each page that follows the overview uses a connection and gets an event every second. "
            "More are refused with the code overloaded.",
        ),
    ] = 1_000
    tokens_max: Annotated[
        int,
        Limit(
            "tokens",
            "Every API process holds all tokens in memory. More are refused with the code "
            "overloaded.",
        ),
    ] = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1")


def described(limits: type[Limits]) -> Iterator[tuple[str, int, Limit]]:
    """Name, default and description of each limit, in the order of declaration."""

    hints = get_type_hints(limits, include_extras=True)
    for field in fields(limits):
        (limit,) = hints[field.name].__metadata__
        yield field.name, getattr(limits, field.name), limit
