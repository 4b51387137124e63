"""The journal into Delta, against plain loops of redis-py that only read it; and all tables.

`LAKE_EVENTS` sets the size (1,000,000 unless given), `LAKE_ROUNDS` the rounds, `LAKE_PARTS` what
is run: `copy`, `tables`, `fresh`, `idle` and `size`, all but the first in `lake_tables.py`. The
loops:

- *one entry per event*: the same events as a stream of single entries, each read into a dict by
  redis-py. This is what a reader of a plain stream gets, and what ratios are taken to.
- *packed, decoded*: our journal, whose entries hold many events, read by redis-py, and each event
  decoded with `json.loads`.
- *packed, bytes only*: the same, without looking at the events: the least that any reader does.

Ours reads, decodes, writes Parquet by day and module, and commits.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from tests.kit.server import ServerProcess

import angarium.lake
import redis
from angarium.settings import Settings
from benchmarks import lake_tables
from benchmarks.measure import STEAL_MAX, cpu_times, steal_since
from benchmarks.processes import family

EVENTS = int(os.environ.get("LAKE_EVENTS", "1000000"))
ROUNDS = int(os.environ.get("LAKE_ROUNDS", "3"))
EVENTS_PER_ENTRY = 200
COUNT = 10_000
BATCH_ROWS = 1_000_000
BASE = "one entry per event"
PARTS = (os.environ.get("LAKE_PARTS") or "copy,tables,fresh,idle,size").split(",")

# Filled by a script, so that filling takes seconds and not minutes.
FILL = """
local first, entries, events = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local number = first
for _ = 1, entries do
  local rows = {}
  for n = 1, events do
    local id = string.format('0198c2f1e6a27b3c%016d', number)
    rows[n] = '{"e":"accepted","s":"' .. id .. '","k":"orders","o":"acme","p":"invoice","a":1}'
    if ARGV[4] == '1' then
      redis.call('XADD', KEYS[2], '*', 'e', 'accepted', 's', id, 'k', 'orders', 'o', 'acme',
        'p', 'invoice', 'a', 1)
    end
    number = number + 1
  end
  redis.call('XADD', KEYS[1], '*', 'v', 1, 'module', 'dispatch', 'at', ARGV[5], 'by', 'bench',
    'n', events, 'seq', number, 'end', 0, 'rows', table.concat(rows, '\\n'))
end
return number
"""


def _fill(client: Any, events: int, *, singles: bool = True) -> None:
    number = 0
    while number < events:
        now_ms = int(time.time() * 1000)
        flag = "1" if singles else "0"
        entries = min(10, (events - number) // EVENTS_PER_ENTRY)
        number = client.eval(
            FILL, 2, "journal", "singles", number, entries, EVENTS_PER_ENTRY, flag, now_ms
        )


def _pages(client: Any, key: str, count: int) -> Any:
    after = "-"
    while page := client.xrange(key, after, "+", count=count):
        yield page
        after = f"({page[-1][0].decode()}"


def _singles(client: Any) -> int:
    return sum(len(page) for page in _pages(client, "singles", COUNT))


def _decoded(client: Any) -> int:
    found = 0
    for page in _pages(client, "journal", 100):
        for _, fields in page:
            found += len([json.loads(line) for line in fields[b"rows"].split(b"\n")])
    return found


def _bytes_only(client: Any) -> int:
    return sum(int(fields[b"n"]) for page in _pages(client, "journal", 100) for _, fields in page)


class Lake:
    def __init__(self, url: str, folder: Path, client: Any) -> None:
        self._url = url
        self._client = client
        self._folder = folder
        self._number = 0
        settings = Settings(home=folder)
        self.spark = angarium.lake.session(
            settings, master="local[2]", conf={"spark.driver.memory": "1g"}
        )

    def options(self) -> dict[str, str]:
        return {"url": self._url, "maxRowsPerBatch": str(BATCH_ROWS)}

    def place(self) -> Path:
        self._number += 1
        return self._folder / f"run{self._number}"

    def bronze(self) -> int:
        """The product's own query, without the steps that follow it."""
        tables = lake_tables.Tables(self.spark, self._url, self.place())
        # Holds the journal for the next round.
        self._client.hset("journal:readers", "witness", "0-0")
        tables.store(bronze_only=True)
        return tables.lake.rows("events")

    def rows(self) -> int:
        """Rows pass through Spark, where a user could transform them."""
        place = self.place()
        frame = self.spark.readStream.format("redis-stream").options(**self.options())
        writer = frame.option("decode", "journal").load().writeStream.format("angarium-delta")
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        writer = writer.option("partitionBy", "module").trigger(availableNow=True)
        writer.start(str(place / "events")).awaitTermination()
        return _stored(place)


def _stored(place: Path) -> int:
    files = pa.table(DeltaTable(str(place / "events")).get_add_actions(flatten=True))
    rows = int(sum(files["num_records"].to_pylist()))
    shutil.rmtree(place)
    return rows


def _measure(run: Callable[[], int], events: int) -> float:
    for _ in range(10):
        before = cpu_times()
        began = time.perf_counter()
        found = run()
        seconds = time.perf_counter() - began
        assert found == events, (found, events)
        if steal_since(before) <= STEAL_MAX:
            break
    return events / seconds


def _throughput(lake: Lake, client: Any) -> float:
    """Events a second of the loop to which ratios are taken."""
    contenders: dict[str, Callable[[], int]] = {
        BASE: lambda: _singles(client),
        "packed, decoded": lambda: _decoded(client),
        "packed, bytes only": lambda: _bytes_only(client),
        "**lake, into bronze**": lake.bronze,
        "`redis-stream` into `angarium-delta`": lake.rows,
    }
    # The first run compiles Spark's code.
    lake.bronze()
    lake.rows()
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            rates[name].append(_measure(run, EVENTS))
    print(f"{EVENTS:,} events, {EVENTS_PER_ENTRY} per entry, local[2], {ROUNDS} rounds:\n")
    print("| | events/s | ratio | spread |\n|---|---:|---:|---:|")
    for name, found in rates.items():
        ratios = sorted(a / b for a, b in zip(found, rates[BASE], strict=True))
        print(
            f"| {name} | {statistics.median(found):,.0f} | {statistics.median(ratios):.2f} "
            f"| {ratios[0]:.2f}–{ratios[-1]:.2f} |"
        )
    print(f"\nLargest Python worker at its peak: {_peak_mib()} MiB.")
    return statistics.median(rates[BASE])


def _peak_mib() -> int:
    """The most that any Python worker of Spark's held; they are children of its JVM."""
    workers = (each for each in family() if b"pyspark" in each.command and each.name != "java")
    return max((each.peak_mib for each in workers), default=0)


def main() -> None:
    print(f"## The lake, {datetime.now(UTC):%H:%M} UTC\n")
    folder = Path(tempfile.mkdtemp(prefix="angarium-lake-"))
    # Kept by who wants to go on with a table that has grown.
    kept = Path(os.environ.get("LAKE_FOLDER") or folder)
    try:
        with ServerProcess() as server:
            client = redis.Redis(port=server.port)
            lake = Lake(server.url, folder, client)
            base = 0.0
            if "copy" in PARTS:
                _fill(client, EVENTS)
                base = _throughput(lake, client)
                client.flushall()

            def tables() -> lake_tables.Tables:
                return lake_tables.Tables(lake.spark, server.url, lake.place())

            if "tables" in PARTS:
                lake_tables.throughput(tables, client, EVENTS, base)
            if "fresh" in PARTS:
                lake_tables.freshness(tables(), client)
            if "idle" in PARTS:
                lake_tables.idle(tables(), client)
            if "size" in PARTS:
                grown = lake_tables.Tables(lake.spark, server.url, kept)
                lake_tables.growth(grown, client, server.pid)
            lake.spark.stop()
            client.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
