"""Rows of the lake sent back into a room: chosen by a filter, shown first, sent once.

What is sent again is what the lake has the content of: results (`processed`) go into the durable
intake of dispatch, archived transactions (`transactions`) are started anew with the data they had.
A replay has a name. Each row that was sent is written down under it, and the room is given an
idempotency key made of the name and the row's id, so a replay that is repeated, after a crash in
its middle too, sends only what is missing. How a room takes a row is the caller's to say: the lake
knows no rooms.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from angarium.lake.query import Answer, connect, run
from angarium.lake.schemas import REPLAYS
from angarium.lake.tables import Lake
from angarium.runtime.errors import InputInvalid

# So many are sent before they are written down: what a crash in between repeats is caught by the
# rooms' own idempotency keys.
PORTION = 200
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
# Table -> the column that is a row's id, and the columns that are needed to send it.
SOURCES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "processed": ("message_id", "fields"),
        "transactions": ("id", "pipeline, owner, version, state"),
    }
)


class Planned(msgspec.Struct, frozen=True):
    """One row that the filter chose. `done`: sent by an earlier run of this replay."""

    id: str
    row: dict[str, Any]
    done: bool = False

    def key(self, replay: str) -> str:
        return f"replay:{replay}:{self.id}"


@dataclass(frozen=True)
class Plan:
    replay: str
    source: str
    rows: Sequence[Planned]

    @property
    def waiting(self) -> Sequence[Planned]:
        return [each for each in self.rows if not each.done]


# Takes a row and its idempotency key, and answers with the id that the row got in the room.
Send = Callable[[Planned, str], Awaitable[str]]


def plan(lake: Lake, replay: str, source: str, where: str, limit: int) -> Plan:
    """What a replay would send; the filter is SQL over the columns of its source."""
    if source not in SOURCES:
        known = " and ".join(SOURCES)
        raise InputInvalid(f"'{source}' can't be replayed: only {known} have the content of a row")
    if not _NAME.fullmatch(replay):
        raise InputInvalid(f"'{replay}' can't name a replay: use letters, digits or any of _.-")
    lake.need(source)
    id_column, columns = SOURCES[source]
    with connect(lake, (source, REPLAYS.name)) as connection:
        answer = run(
            connection,
            f"select chosen.id, chosen.*, done.id is not null as done from ("
            f"select {id_column} as id, {columns} from {source} "
            f"where {id_column} is not null and ({where}) order by 1 limit {int(limit)}) as chosen "
            f"left join (select distinct id from {REPLAYS.name} where replay = ? and source = ?) "
            "as done on chosen.id = done.id order by 1",
            [replay, source],
        )
    return Plan(replay, source, _planned(answer))


async def send_all(lake: Lake, chosen: Plan, send: Send, tell: Callable[[int], None]) -> int:
    """Send what waits, in portions; `tell` hears of each portion. How many were sent."""
    waiting = chosen.waiting
    for start in range(0, len(waiting), PORTION):
        portion = waiting[start : start + PORTION]
        async with asyncio.TaskGroup() as group:  # together, so that they share a script call
            tasks = [
                (each.id, group.create_task(_sent(send, each, chosen.replay))) for each in portion
            ]
        _write_down(lake, chosen, [(id, task.result()) for id, task in tasks])
        tell(len(portion))
    return len(waiting)


async def _sent(send: Send, planned: Planned, replay: str) -> str:
    return await send(planned, planned.key(replay))


def _planned(answer: Answer) -> list[Planned]:
    found: list[Planned] = []
    for row in answer.as_dicts():
        done = bool(row.pop("done"))
        found.append(Planned(row.pop("id"), row, done))
    return found


def _write_down(lake: Lake, chosen: Plan, sent: Sequence[tuple[str, str]]) -> None:
    import pyarrow as pa

    at_ms = time.time_ns() // 1_000_000
    rows = [
        {"replay": chosen.replay, "source": chosen.source, "id": id, "sent_as": name,
         "at_ms": at_ms}
        for id, name in sent
    ]  # fmt: skip
    lake.append(REPLAYS.name, pa.Table.from_pylist(rows, REPLAYS.arrow()))
