"""All tables of the lake from one journal: how fast, how fresh, and what it costs as they grow.

The journal is that of three modules, as the scripts write it: messages of dispatch and pickup that
are accepted and end, transactions that are started, taken and completed; an entry holds 200
events of one kind, so that the events of a message lie in several entries, tasks and batches. The
pipeline is the one of `angarium lake run`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from angarium.lake.checkpoint import ENTRY, position_of
from angarium.lake.pipeline import Pipeline
from angarium.lake.query import ask
from angarium.lake.schemas import INTERVALS_S
from angarium.lake.steps import LakeTables, follow, steps_of
from angarium.lake.tables import Lake
from angarium.settings import Settings
from benchmarks.lake_triggers import cpu_seconds
from benchmarks.processes import family
from benchmarks.sizes import sizes

EVENTS_PER_ENTRY = 200
RATE = 5_000  # events/s for freshness
IDLE_S = int(os.environ.get("LAKE_IDLE_S") or 30)
FRESH_S = int(os.environ.get("LAKE_FRESH_S") or 60)  # long enough for the lake to tidy up once
WARM_S = 10
MILLION = 1_000_000
PASS_S_MAX = 300
TABLES = ("events", "messages_open", *INTERVALS_S)

# A round is seven entries of as many kinds; the numbers of its lives are those of the round.
FILL = """
local kinds = {
  {'dispatch', 'accepted'}, {'transactions', 'started'}, {'pickup', 'accepted'},
  {'transactions', 'taken'}, {'dispatch', 'completed'}, {'pickup', 'delivered'},
  {'transactions', 'completed'}}
local first, last, size, at = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local sequence, id = first * 7 * size, ''
for number = first, last - 1 do
  for _, kind in ipairs(kinds) do
    local rows = {}
    for n = 1, size do
      rows[n] = string.format('{"e":"%s","s":"0198c2f1%s%016d","k":"orders","o":"acme","a":1%s}',
        kind[2], string.sub(kind[1], 1, 2), number * size + n,
        kind[1] == 'transactions' and ',"p":"invoice","t":"success"' or '')
    end
    sequence = sequence + size
    id = redis.call('XADD', KEYS[1], '*', 'v', 1, 'module', kind[1], 'at', at, 'by', 'bench',
      'n', size, 'seq', sequence, 'end', 0, 'rows', table.concat(rows, '\\n'))
  end
end
return id
"""


def fill(client: Any, first: int, rounds: int, size: int = EVENTS_PER_ENTRY) -> str:
    """Rounds of seven entries; returns the last entry's id."""
    entry = b""
    for number in range(first, first + rounds, 10):
        last = min(number + 10, first + rounds)
        entry = client.eval(FILL, 1, "journal", number, last, size, int(time.time() * 1000))
    return entry.decode()


class Tables:
    """A lake of its own beside what is measured elsewhere."""

    def __init__(self, spark: SparkSession, url: str, home: Path) -> None:
        self.settings = Settings(home=home, redis_url=url)
        self.lake = Lake.of(self.settings)
        self._spark = spark

    def pipeline(self) -> Pipeline:
        return Pipeline(self._spark, self.settings, self.settings.redis_url)

    def store(self, *, bronze_only: bool = False) -> float:
        """Everything that is there now; seconds."""
        pipeline = self.pipeline()
        if bronze_only:
            pipeline.steps = []
        began = time.perf_counter()
        pipeline.start(once=True)
        while not pipeline.wait(1):
            if time.perf_counter() - began > PASS_S_MAX:
                raise TimeoutError("the lake did not come to an end")
        seconds = time.perf_counter() - began
        pipeline.stop()
        return seconds

    def follow(self) -> float:
        """All tables once more, from the Parquet files of bronze: Spark without our source."""
        tables = LakeTables(self.lake)
        last = tables["events"].last_batch("journal") or 0
        began = time.perf_counter()
        for step in steps_of(self._spark, tables):
            follow(step, lambda: last)
        return time.perf_counter() - began


def throughput(make: Callable[[], Tables], client: Any, events: int, base: float) -> None:
    """Cold, with a session that has just started, and warm; `base` is the loop's rate."""
    rounds = events // (7 * EVENTS_PER_ENTRY)
    events = rounds * 7 * EVENTS_PER_ENTRY
    seconds, fed = [], []
    for _ in range(3):
        client.flushall()  # what is stored was trimmed
        fill(client, 0, rounds)
        tables = make()
        seconds.append(tables.store())
        (found,) = ask(tables.lake, "select count(*), sum(events) from messages").rows
        assert found == (events * 3 // 7, events), found
        for name in tables.lake.existing():
            if name != "events":
                shutil.rmtree(tables.lake.path(name))
        fed.append(tables.follow())
    print("\n## The journal into all tables\n")
    print("| | s | events/s | ratio |\n|---|---:|---:|---:|")
    for name, value in (
        ("first run of a session", seconds[0]),
        ("all tables, then", min(seconds[1:])),
        ("silver and gold alone, from bronze's Parquet files", min(fed[1:])),
    ):
        ratio = f"{events / value / base:.2f}" if base else ""
        print(f"| {name} | {value:.1f} | {events / value:,.0f} | {ratio} |")
    print(f"\n{events:,} events into events, messages and the three tables of statistics.")
    client.flushall()


class _Writer(threading.Thread):
    """Entries of 50 events at a steady rate, and what was written when."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client
        self.positions: list[int] = []
        self.times: list[float] = []
        self.stop = threading.Event()

    def run(self) -> None:
        began, rounds = time.monotonic(), 0
        while not self.stop.is_set():
            if rounds * 350 < (time.monotonic() - began) * RATE:
                at = time.monotonic()
                entry = fill(self._client, rounds, 1, size=50)
                self.positions.append(position_of(entry))
                self.times.append(at)
                rounds += 1
            else:
                time.sleep(0.005)

    def oldest_after(self, position: int) -> float | None:
        """When the first was written that a table which has come so far does not have."""
        place = bisect_right(self.positions, position)
        return self.times[place] if place < len(self.times) else None


def freshness(tables: Tables, client: Any) -> None:
    """For each commit of each table, the age of the oldest row that it brings."""
    client.flushall()
    _warm_up(tables, client)
    pipeline, writer = tables.pipeline(), _Writer(client)
    pipeline.start()
    writer.start()
    ages: dict[str, list[float]] = {name: [] for name in TABLES}
    seen, ends = dict.fromkeys(TABLES, -1), {-1: -1}
    logs = {name: tables.lake.log(name) for name in TABLES}
    began = time.monotonic()
    while (now := time.monotonic()) < began + WARM_S + FRESH_S:
        for name in TABLES:
            batch = logs[name].last_batch("journal")
            if name == "events" and batch is not None:
                ends[batch] = logs[name].last_batch(f"{ENTRY}journal") or -1
            position = ends.get(-1 if batch is None else batch, -1)
            if position > seen[name]:
                oldest = writer.oldest_after(seen[name])
                seen[name] = position
                if oldest is not None and now > began + WARM_S:
                    ages[name].append(time.monotonic() - oldest)
        time.sleep(0.03)
    writer.stop.set()
    writer.join()
    pipeline.stop()
    print(f"\n## From a transition to its rows, at {RATE:,} events/s\n")
    print("| table | commits | median s | 99 of 100 | worst s |\n|---|---:|---:|---:|---:|")
    for name, found in ages.items():
        found.sort()
        print(
            f"| {name} | {len(found)} | {statistics.median(found):.2f} "
            f"| {found[int(len(found) * 0.99)]:.2f} | {found[-1]:.2f} |"
        )
    median = max(statistics.median(found) for found in ages.values())
    high = max(found[int(len(found) * 0.99)] for found in ages.values())
    print(f"\nOldest row of each commit over {FRESH_S} s, the worst table:")
    print(f"{median:.2f} s at the median, {high:.2f} s at 99 of 100.")
    client.flushall()


def idle(tables: Tables, client: Any) -> None:
    """CPU of all processes of the lake while nothing comes, as a share of one core."""
    client.flushall()
    _warm_up(tables, client)
    pipeline = tables.pipeline()
    pipeline.start()
    time.sleep(WARM_S)
    before = sum(cpu_seconds().values())
    time.sleep(IDLE_S)
    used = (sum(cpu_seconds().values()) - before) / IDLE_S
    pipeline.stop()
    print(f"\n## Idle\n\nWithout events the lake uses {100 * used:.1f} % of a core ({IDLE_S} s).")


def growth(tables: Tables, client: Any, server_pid: int) -> None:
    """A million after the other; the journal is trimmed behind them, the tables are not."""
    most = max(sizes(1, 5, 10, 20))
    rounds = MILLION // (7 * EVENTS_PER_ENTRY)
    events = rounds * 7 * EVENTS_PER_ENTRY
    done = int(os.environ.get("LAKE_DONE") or 0)
    budget_s, began = float(os.environ.get("LAKE_SECONDS") or 1e9), time.monotonic()
    _warm_up(tables, client)
    print("\n## As the tables grow\n")
    print(
        "| million events | s for the last | events/s | one message by id, ms | JVM MiB "
        "| workers MiB | driver MiB | Redis MiB |\n|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    while done < most and time.monotonic() - began < budget_s:
        fill(client, done * rounds, rounds)
        seconds = tables.store()
        client.xtrim("journal", maxlen=0)
        done += 1
        shown = _resident_mib(server_pid)
        looked = _look_ms(tables.lake, done * rounds - 1)
        print(
            f"| {done} | {seconds:.2f} | {events / seconds:,.0f} | {looked:.0f} | "
            + " | ".join(str(shown[name]) for name in ("jvm", "workers", "driver", "redis"))
            + " |",
            flush=True,
        )
    (found,) = ask(tables.lake, "select count(*), sum(events) from messages").rows
    assert found == (done * events * 3 // 7, done * events), found


def _warm_up(tables: Tables, client: Any) -> None:
    """The first pass of a session compiles."""
    fill(client, 0, 70)
    Tables(tables._spark, tables.settings.redis_url, tables.settings.home / "warm").store()
    client.flushall()


def _look_ms(lake: Lake, number: int) -> float:
    subject = f"0198c2f1di{number * EVENTS_PER_ENTRY + 1:016d}"
    began = time.perf_counter()
    sql = "select outcome, events from messages where subject = ?"
    answer = ask(lake, sql, [subject], tables=("messages",))
    assert answer.rows == [("delivered", 2)], answer.rows
    return (time.perf_counter() - began) * 1000


def _resident_mib(server_pid: int) -> dict[str, int]:
    """What the processes of this run hold now."""
    found = {"jvm": 0, "workers": 0, "driver": 0, "redis": 0}
    kinds = {server_pid: "redis", os.getpid(): "driver"}
    for each in family():
        usual = "jvm" if each.name == "java" else "workers"
        found[kinds.get(each.pid, usual)] += each.resident_mib
    return found
