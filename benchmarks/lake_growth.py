"""What a table costs after a month: time to open it and to commit, size of its log, its files.

    python -m benchmarks.lake_growth [--days 30] [--commits-per-day 720]

A month at two commits a second is five million commits. What a commit and an opening cost depends
on three things: the commits inside the retention of the log, the removed files inside theirs, and
the files of all days. So this makes a month of days with fewer commits each, and cuts the retention
times so that as many commits stand inside them as do at two a second. Everything else is the
product's: commits, checkpoints, the choice of files that are put together, cleaning. Files are
links to one small Parquet file, for Spark's part is not what is measured; they count as a twentieth
of a megabyte, as a batch at 1,000 events a second has. CPU times say more than times on a machine
that does other things, too; that of a commit is the mean, checkpoints included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from angarium.lake import delta_log
from angarium.lake.delta_log import DataFile, DeltaLog
from angarium.lake.maintenance import FILES_PER_SIZE, chosen_files

MODULES = ("dispatch", "routing", "pickup")
FILE_BYTES = 50_000
COMMITS_PER_S = 2
COMMITS_PER_COMPACTION = 60
COMMITS_PER_CLEANING = 600
_LONGS = ("n", "at_ms", "batch")
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": "long" if name in _LONGS else "string", "nullable": True,
             "metadata": {}}
            for name in (*_LONGS, "subject", "date", "module")
        ],
    }
)  # fmt: skip


class Table:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._cleaned = time.monotonic()
        self._one = root.with_name("one.parquet")
        pq.write_table(pa.table({name: pa.array([1], pa.int64()) for name in _LONGS}), self._one)
        self.log = DeltaLog(str(root))
        self.log.ensure(SCHEMA, ("date", "module"), {})
        self.commits = 0
        self.took_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def file(self, day: str, module: str, size_bytes: int) -> DataFile:
        path = f"w={uuid.uuid4().hex}/date={day}/module={module}/part-0.parquet"
        place = self.root / path
        place.parent.mkdir(parents=True)
        os.link(self._one, place)
        low = {"n": 0, "at_ms": 0, "batch": self.commits, "subject": "message-0000"}
        high = {"n": 9, "at_ms": 9, "batch": self.commits, "subject": "message-9999"}
        stats = {
            "numRecords": 1,
            "minValues": low,
            "maxValues": high,
            "nullCount": dict.fromkeys(low, 0),
        }
        return DataFile(path, size_bytes, 1, {"date": day, "module": module}, json.dumps(stats))

    def write(self, day: str) -> None:
        files = [self.file(day, module, FILE_BYTES) for module in MODULES]
        began, cpu = time.perf_counter(), time.process_time()
        self.log.commit(files, (), {"journal": self.commits}, once="journal")
        self.took_ms.append((time.perf_counter() - began) * 1000)
        self.cpu_ms.append((time.process_time() - cpu) * 1000)
        self.commits += 1
        if self.commits % COMMITS_PER_COMPACTION == 0:
            self.compact()
        if self.commits % COMMITS_PER_CLEANING == 0:
            self.clean()

    def clean(self) -> None:
        """With retention times in which this machine makes as many commits as it should."""
        now = time.monotonic()
        commits_per_s = COMMITS_PER_CLEANING / (now - self._cleaned)
        self._cleaned = now
        table = self.log.open()
        assert table is not None
        scaled = {}
        for name in (delta_log.LOG, delta_log.REMOVED):
            count, unit = delta_log.CONFIGURATION[name].split()[1:]
            assert unit == "minutes"
            commits = float(count) * 60 * COMMITS_PER_S
            scaled[name] = f"interval {max(1, round(commits / commits_per_s))} seconds"
        table.alter.set_table_properties(scaled)
        self.log.cleanup()
        self.log.vacuum()

    def compact(self) -> None:
        """As `maintenance.compact` does, with links instead of Spark's files."""
        groups: dict[tuple[str, str], list[DataFile]] = {}
        for each in chosen_files(self.log.files(), FILES_PER_SIZE):
            values = each.partition_values
            groups.setdefault((str(values["date"]), str(values["module"])), []).append(each)
        made = [
            self.file(*values, sum(each.size_bytes for each in files))
            for values, files in groups.items()
        ]
        if made:
            old = [each for files in groups.values() for each in files]
            self.log.commit(made, old, news=False)

    def figures(self) -> dict[str, float]:
        opened, opened_cpu = [], []
        for _ in range(5):
            began, cpu = time.perf_counter(), time.process_time()
            DeltaLog(str(self.root)).open()
            opened.append((time.perf_counter() - began) * 1000)
            opened_cpu.append((time.process_time() - cpu) * 1000)
        log = list((self.root / "_delta_log").iterdir())
        recent = sorted(self.took_ms)
        commit_cpu_ms = statistics.mean(self.cpu_ms)
        self.took_ms, self.cpu_ms = [], []
        return {
            "commits": self.commits,
            "open_ms": statistics.median(opened),
            "open_cpu_ms": statistics.median(opened_cpu),
            "commit_ms": statistics.median(recent),
            "commit_p99_ms": recent[int(len(recent) * 0.99)],
            "commit_cpu_ms": commit_cpu_ms,
            "log_files": len(log),
            "log_mib": sum(each.stat().st_size for each in log) / (1 << 20),
            "table_files": len(self.log.files()),
            "folders": sum(1 for _ in self.root.iterdir()),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--commits-per-day", type=int, default=720)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="angarium-growth-") as folder:
        table = Table(Path(folder) / "table")
        for number in range(given.days):
            day = (datetime.date(2026, 1, 1) + datetime.timedelta(days=number)).isoformat()
            for _ in range(given.commits_per_day):
                table.write(day)
            shown = " ".join(f"{name}={value:.1f}" for name, value in table.figures().items())
            print(f"day {number + 1:>2}: {shown}", flush=True)


if __name__ == "__main__":
    main()
