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
            "A body is held whole while it is decoded; this leaves room for a full batch of "
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
