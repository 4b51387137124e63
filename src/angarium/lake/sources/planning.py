"""Where a batch of `redis-stream` begins and ends, and how it is divided into tasks.

Runs on the driver. Nothing is read to plan a batch but the two ends of each stream: where a limit
lies in between is found by dividing ids in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from angarium.lake.errors import CheckpointMismatch
from angarium.lake.sources import entry_ids
from angarium.lake.sources.options import Decode, Gap, StreamOptions
from angarium.lake.sources.streams import (
    StreamState,
    entry_at,
    find_keys,
    is_replaced,
    look,
    refuse_gap,
    refuse_replaced,
    rows_lost,
    sequences_of,
)
from angarium.redis.blocking import BlockingRedis

# Below this, starting another task costs more than it saves.
ROWS_PER_TASK_MIN = 20_000
# A guess at the end of a batch is corrected so often, where the entries tell how far it is.
GUESSES_MAX = 4


@dataclass(frozen=True)
class Position:
    """How far each key was read. `gaps` counts what was lost before it could be read."""

    source: str
    ids: Mapping[str, int]
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, offset: Mapping[str, Any], options: StreamOptions) -> Position:
        if not {"source", "ids"} <= set(offset) or offset["source"] != options.source:
            whose = offset.get("source", "another source")
            raise CheckpointMismatch(
                f"the checkpoint belongs to '{whose}', and this query reads '{options.source}'; "
                "give each query a checkpointLocation of its own"
            )
        ids = {key: entry_ids.number_of(text) for key, text in offset["ids"].items()}
        return cls(options.source, ids, offset.get("counts", {}), offset.get("gaps", {}))

    def offset(self) -> dict[str, Any]:
        ids = {key: entry_ids.text_of(number) for key, number in sorted(self.ids.items())}
        found: dict[str, Any] = {"source": self.source, "ids": ids}
        if self.counts:
            found["counts"] = dict(sorted(self.counts.items()))
        if self.gaps:
            found["gaps"] = dict(sorted(self.gaps.items()))
        return found


@dataclass(frozen=True)
class Range:
    """Entries of one key behind `start`, up to and with `end`; `rows` is a guess."""

    key: str
    start: int
    end: int
    rows: int
    first: int
    """The stream's first entry when the batch was planned."""


class Planner:
    def __init__(self, options: StreamOptions, redis: BlockingRedis) -> None:
        self._options = options
        self._redis = redis
        self._journal = options.decode is Decode.JOURNAL
        self._stop: Mapping[str, int] | None = None

    def starting(self) -> Position:
        starting = self._options.starting
        keys = find_keys(self._redis, self._options.keys)
        if isinstance(starting, Mapping):
            ids = {key: entry_ids.number_of(starting.get(key, "0-0")) for key in keys}
            return Position(self._options.source, ids)
        if starting == "earliest":
            return Position(self._options.source, dict.fromkeys(keys, entry_ids.FIRST))
        states = self._states(keys)
        return Position(
            self._options.source,
            {key: state.last for key, state in states.items()},
            {key: state.count for key, state in states.items() if state.last and state.count},
        )

    def ending(self, start: Position) -> Position:
        """For reading at once: what there is now, or up to given ids."""
        end = self.latest(start, None)
        if not isinstance(self._options.ending, Mapping):
            return end
        given = {key: entry_ids.number_of(text) for key, text in self._options.ending.items()}
        ids = {key: min(number, given.get(key, number)) for key, number in end.ids.items()}
        return Position(end.source, ids)

    def stop_at_present(self) -> None:
        """From now on nothing newer is offered."""
        keys = find_keys(self._redis, self._options.keys)
        self._stop = {key: state.last for key, state in self._states(keys).items()}

    def latest(self, start: Position, rows_max: int | None) -> Position:
        keys = sorted({*find_keys(self._redis, self._options.keys), *start.ids})
        if self._stop is not None:
            keys = [key for key in keys if key in self._stop or key in start.ids]
        states = self._states(keys)
        gaps = dict(start.gaps)
        ready: dict[str, int] = {}
        places: dict[str, tuple[int, int | None]] = {}
        for key, state in states.items():
            position, count = start.ids.get(key, entry_ids.FIRST), start.counts.get(key)
            place, lost = self._place(key, position, count, state)
            ready[key] = state.rows_after(*place)
            places[key] = place
            if lost and ready[key]:
                gaps[key] = gaps.get(key, 0) + lost
        total = sum(ready.values())
        share = 1.0 if rows_max is None or total <= rows_max else rows_max / total
        ids, counts = dict(start.ids), dict(start.counts)
        for key, state in states.items():
            if not ready[key]:
                ids.setdefault(key, entry_ids.FIRST)
                continue
            end, count = self._end(key, *places[key], state, share)
            ids[key] = end
            counts.pop(key, None)
            if count is not None:
                counts[key] = count
        # Spark compares offsets as text: the same must look the same.
        moved = any(ids[key] != start.ids.get(key) for key in ids)
        return Position(start.source, ids, counts, gaps) if moved else start

    def _place(
        self, key: str, position: int, count: int | None, state: StreamState
    ) -> tuple[tuple[int, int | None], int]:
        """Where to read on, and how many rows were lost before that."""
        if is_replaced(position, count, state):
            if self._options.gap is Gap.ERROR:
                refuse_replaced(key, position, state)
            if not state.last:  # deleted, and nothing came since
                return (position, count), 0
            # How much of the old stream was unread, nobody can tell; ids that go on are behind us.
            return (position if position < state.last else entry_ids.FIRST, None), 1
        lost = rows_lost(position, count, state)
        if lost and self._options.gap is Gap.ERROR:
            refuse_gap(key, position, lost)
        return (position, count), lost

    def _end(
        self, key: str, position: int, count: int | None, state: StreamState, share: float
    ) -> tuple[int, int | None]:
        """The last entry to be read, and the running number there, if it is known."""
        last = state.last
        if self._stop is not None:
            last = min(last, self._stop.get(key, last))
        whole = last == state.last
        if share >= 1:
            return last, state.count if whole else None
        low = max(position, state.first - 1)
        wanted = max(1, int(state.rows_after(position, count) * share))
        guess, number = entry_at(self._redis, key, entry_ids.between(low, last, share), position)
        if not self._journal or number is None:
            return min(guess, last), None
        return self._refined(key, low, last, state, wanted, (guess, number))

    def _refined(
        self, key: str, low: int, last: int, state: StreamState, wanted: int, guess: tuple[int, Any]
    ) -> tuple[int, int | None]:
        """A journal entry says how many events came before it: too much is cut down."""
        found = sequences_of(guess[1])
        before = state.removed
        place = guess[0]
        first = entry_at(self._redis, key, low, low - 1 if low else 0)[1] if low else None
        numbers = sequences_of(first)
        if numbers is not None:
            before = max(before, numbers[1] if low >= state.first else numbers[0] - 1)
        for _ in range(GUESSES_MAX):
            if found is None or found[1] - before <= wanted * 1.25:
                break
            share = wanted / (found[1] - before)
            closer, entry = entry_at(self._redis, key, entry_ids.between(low, place, share), low)
            if closer >= place:
                break
            place, found = closer, sequences_of(entry)
        return min(place, last), found[1] if found is not None else None

    def divide(self, start: Position, end: Position) -> list[list[Range]]:
        """Tasks: large ranges are cut, small ones of several keys go together."""
        ranges: list[Range] = []
        for key, last in end.ids.items():
            first = start.ids.get(key, entry_ids.FIRST)
            if last < first:
                first = entry_ids.FIRST  # another stream under the same name
            if last > first:
                ranges += self._cut(key, first, last, start, end)
        if not ranges:
            return []
        tasks: list[list[Range]] = [[]]
        aim = max(ROWS_PER_TASK_MIN, sum(each.rows for each in ranges) // self._options.parallelism)
        filled = 0
        for each in ranges:
            if tasks[-1] and filled + each.rows > aim * 1.2:
                tasks.append([])
                filled = 0
            tasks[-1].append(each)
            filled += each.rows
        return tasks

    def _cut(self, key: str, first: int, last: int, start: Position, end: Position) -> list[Range]:
        state = look(self._redis, key, journal=self._journal)
        self._place(key, first, start.counts.get(key), state)
        counts = start.counts.get(key), end.counts.get(key)
        if counts[1] is not None and (counts[0] or 0) <= counts[1]:
            rows = counts[1] - (counts[0] if counts[0] is not None else state.removed)
        else:
            ahead = state.rows_after(first, counts[0])
            low = max(first, state.first - 1)
            rows = int(ahead * min(1.0, (last - low) / max(1, state.last - low)))
        parts = max(1, min(self._options.parallelism, rows // ROWS_PER_TASK_MIN))
        begin = max(first, state.first - 1) if state.first else first
        pieces = entry_ids.split(begin, last, parts) if last > begin else [(first, last)]
        rows = max(1, rows // len(pieces))
        return [Range(key, low, high, rows, state.first) for low, high in pieces]

    def _states(self, keys: list[str]) -> dict[str, StreamState]:
        return {key: look(self._redis, key, journal=self._journal) for key in keys}
