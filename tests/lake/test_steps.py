"""The tables that follow bronze: however it is cut, and whatever is repeated, the same rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium.lake.catalogue import CATALOGUE
from angarium.lake.schemas import EVENTS, INTERVALS_S, STATS_FINE
from angarium.lake.steps import LakeTables, PipelineStep, follow, steps_of
from angarium.lake.tables import Lake, LakeTable
from angarium.runtime.module import Part
from tests.kit.java import compiled
from tests.lake import model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Every seed is some thirty Spark jobs on a machine that does other things, too.
pytestmark = pytest.mark.timeout(600)
AT_MS = 1_760_000_000_000
DAY_MS = 86_400_000
Event = dict[str, Any]


def event(sequence: int, module: str, name: str, subject: str, at_ms: int, **more: Any) -> Event:
    given = {
        "partition": 0, "entry_id": f"{at_ms}-{sequence}", "sequence": sequence, "version": 1,
        "module": module, "at_ms": at_ms, "actor": "a", "event": name, "subject": subject,
    }  # fmt: skip
    return {**dict.fromkeys(EVENTS.names), **given, **more}


def journal(seed: int, *, used_again: bool) -> list[Event]:
    """Messages of every kind at once, in two partitions, over two days, with values here and there.

    With `used_again` ids begin again after an end; else each id has one message.
    """
    chance = random.Random(seed)
    plans: list[tuple[int, list[tuple[str, str, str]]]] = []
    accounts = sorted({(module, e.account) for (module, _), e in CATALOGUE.items() if e.account})
    for number in range(chance.randint(12, 40)):
        module, account = accounts[number % len(accounts)]
        known = [e for (of, _), e in CATALOGUE.items() if (of, e.account) == (module, account)]

        def some(part: Part, count: int, known: Any = known) -> list[str]:
            names = [each.name for each in known if each.part is part]
            return [chance.choice(names) for _ in range(count)] if names else []

        told = some(Part.ANNOUNCE, chance.randint(0, 1)) + some(Part.ACCEPT, 1)
        told += some(Part.STEP, chance.randint(0, 3))
        if chance.random() < 0.7:
            told += some(Part.END, 1) + some(Part.BESIDE, chance.randint(0, 2))
            if used_again and chance.random() < 0.4:
                told += some(Part.REOPEN, 1) or some(Part.ACCEPT, 1)
                told += some(Part.STEP, 1) + some(Part.END, chance.randint(0, 1))
        plans.append((number % 2, [(module, each, f"{account}-{number}") for each in told]))
    found, sequences, at_ms = [], [0, 0], AT_MS + chance.randint(0, DAY_MS)
    while plans:
        place = chance.randrange(len(plans))
        partition, left = plans[place]
        at_ms += chance.choice((0, 1, 700, 9_000, 900_000))
        sequences[partition] += 1
        module, name, subject = left.pop(0)
        values = {
            value: f"{value}-{chance.randint(0, 2)}" for value in ("key", "owner", "node", "detail")
            if chance.random() < 0.5
        }  # fmt: skip
        if "key" in values and module == "transactions":
            values["pipeline"] = f"p{chance.randint(0, 1)}"
        status = chance.choice((None, "success", "failed"))
        found.append(
            event(sequences[partition], module, name, subject, at_ms, partition=partition,
                  attempt=chance.choice((None, 1, 2)), status=status, **values)
        )  # fmt: skip
        if not left:
            plans.pop(place)
    return found


class Bench:
    """A lake in a folder, whose bronze is given batch by batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.tables = LakeTables(Lake(str(folder), partitions=2))
        self.batch = -1

    def add(self, events: Sequence[Event], batch: int | None = None) -> None:
        self.batch = self.batch + 1 if batch is None else batch
        rows = [
            tuple(
                {**each, "batch": self.batch, "date": _day(each["at_ms"])}[n] for n in EVENTS.names
            )
            for each in events
        ]
        frame = self.spark.createDataFrame(rows, EVENTS.struct()).coalesce(1)
        self.tables["events"].write(frame, writer="journal", batch=self.batch)

    def steps(self) -> list[PipelineStep]:
        """Made anew, as by another process."""
        self.tables = LakeTables(self.tables.lake)
        return steps_of(self.spark, self.tables)

    def follow(self) -> None:
        for step in self.steps():
            follow(step, lambda: self.batch)

    def rows(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        found = self.tables[name].read(self.spark).select(*columns).collect()
        return sorted((tuple(row) for row in found), key=repr)

    def check(self, events: Sequence[Event]) -> None:
        ended, still_open = model.messages(events)
        for name, expected in (("messages", ended), ("messages_open", still_open)):
            columns = list(expected[0]) if expected else ["subject"]
            assert self.rows(name, columns) == sorted(
                (tuple(row[column] for column in columns) for row in expected), key=repr
            ), name
        for name, interval_s in INTERVALS_S.items():
            counts = model.statistics(events, interval_s)
            expected_counts = [(*key, count) for key, count in counts.items()]
            assert self.rows(name, [*STATS_FINE.key, "count"]) == sorted(expected_counts, key=repr)
        columns = ["partition", "first_sequence", "last_sequence", "events"]
        numbers = {p: [e["sequence"] for e in events if e["partition"] == p] for p in (0, 1)}
        assert self.rows("sequences", columns) == [
            (p, 1, max(found), len(found)) for p, found in numbers.items() if found
        ]


def _day(at_ms: int) -> Any:
    import datetime

    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).date()


def cut(events: Sequence[Event], chance: random.Random) -> list[Sequence[Event]]:
    places = sorted(chance.sample(range(1, len(events)), chance.randint(0, 4)))
    return [events[low:high] for low, high in itertools.pairwise([0, *places, len(events)])]


@pytest.mark.parametrize("seed", range(4))
def test_any_cut_into_batches_gives_the_rows_of_the_model(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    check_some_cut(spark, tmp_path, seed)


def test_code_that_spark_has_compiled_gives_the_rows_of_the_model(
    spark: SparkSession, tmp_path: Path
) -> None:
    with compiled(spark):
        check_some_cut(spark, tmp_path, seed=4)


def check_some_cut(spark: SparkSession, folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    events = journal(seed, used_again=True)
    bench = Bench(spark, folder)
    for batch in cut(events, chance):
        bench.add(batch)
        if chance.random() < 0.6:  # else the steps are behind, and take several at once
            bench.follow()
    bench.follow()
    bench.check(events)


class Died(Exception):
    pass


@contextmanager
def dying(at: int, *, committed: bool) -> Iterator[None]:
    """The commit of this number is the last thing that happens, or does not happen any more."""
    commit, left = LakeTable._commit, at

    def dies(self: LakeTable, *args: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not committed:
            raise Died
        done = commit(self, *args, **more)
        if left == 0:
            raise Died
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeTable, "_commit", dies)
        yield


@pytest.mark.parametrize("seed", range(100, 103))
def test_any_order_and_repetition_of_batches_gives_the_rows_of_the_model(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    events = journal(seed, used_again=False)
    chance.shuffle(events)
    bench = Bench(spark, tmp_path)
    for number, batch in enumerate(cut(events, chance)):
        bench.add(batch)
        # The steps make two to six commits of a batch, and the one that dies is made anew.
        with dying(chance.randint(1, 5), committed=chance.random() < 0.5), suppress(Died):
            bench.follow()
        bench.add(batch, number)
        bench.follow()
    bench.check(events)


def test_a_batch_of_small_numbers_hides_no_message_that_has_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What ended has left with the greatest number of its partition; its beginning comes later."""
    batches = [
        [event(1, "pickup", "accepted", "waits", AT_MS, partition=0)],
        [event(25, "pickup", "delivered", "ended", AT_MS + 2, partition=0)],
        [event(1, "pickup", "accepted", "other", AT_MS + 3, partition=1)],
        [event(17, "pickup", "accepted", "ended", AT_MS + 1, partition=0)],
    ]
    bench = Bench(spark, tmp_path)
    for batch in batches:
        bench.add(batch)
        bench.follow()
    found = bench.rows("messages", ["subject", "accepts", "ends", "latency_ms"])
    assert found == [("ended", 1, 1, 1)]
