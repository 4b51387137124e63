"""Records what a fault run sent and received, and checks it.

Every process of a run records what it sent and received. The check finds what was lost, doubled or
out of order. Times come from the machine's monotonic clock, which all processes share. Each record
is one append to a file, so a killed writer damages at most its last record, which is counted. A
history without sent operations is never good.


    python -m tests.kit.history run/*.jsonl
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from tests.kit.verdict import Record, Verdict, check_records

__all__ = ["History", "Record", "Verdict", "main"]


class History:
    """Recorder and checker. With a path, records go to the file; without, they stay here."""

    def __init__(self, path: Path | None = None) -> None:
        self._records: list[Record] = []
        self._path = path
        self._torn = 0
        self._encoder = msgspec.json.Encoder()
        self._fd: int | None = None
        if path is not None:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @classmethod
    def read(cls, *paths: Path) -> Self:
        """The histories of several processes as one."""
        history = cls()
        for path in paths:
            history._load(path.read_bytes())
        return history

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def attempted(self, id: str, key: str | None = None) -> None:
        """About to be sent: it may arrive or not, unless `sent` says that it was accepted.

        Its place in its key's order is that of the first of the two.
        """
        self._add(Record("attempted", time.monotonic_ns(), id, key))

    def sent(self, id: str, key: str | None = None) -> None:
        """Accepted: from now on it must arrive, exactly once, and in the order of its key."""
        self._add(Record("sent", time.monotonic_ns(), id, key))

    def received(self, id: str, key: str | None = None, position: int | None = None) -> None:
        """Arrived. A position, where the system gives one, counts instead of our clock."""
        self._add(Record("received", time.monotonic_ns(), id, key, position))

    def fault(self, kind: str) -> None:
        self._add(Record("fault", time.monotonic_ns(), kind))

    def extend(self, records: Iterable[Record]) -> None:
        for record in records:
            self._add(record)

    def records(self) -> list[Record]:
        """All of them by time; those of one moment in the order they were written."""
        return sorted(self._gathered()._records, key=lambda record: record.at_ns)

    def check(self, *, stall_ms_max: float | None = None) -> Verdict:
        """The verdict; with `stall_ms_max` a longer stall is a failure too."""
        gathered = self._gathered()
        return check_records(gathered.records(), torn=gathered._torn, stall_ms_max=stall_ms_max)

    def _gathered(self) -> History:
        return self if self._path is None else History.read(self._path)

    def _add(self, record: Record) -> None:
        if self._path is None:
            self._records.append(record)
            return
        if self._fd is None:
            raise ValueError("this history is closed")
        # The line break goes in front: a record torn by kill -9 then ends at the next one's
        # break, and does not take its neighbour with it.
        os.write(self._fd, b"\n" + self._encoder.encode(record))

    def _load(self, data: bytes) -> None:
        decoder = msgspec.json.Decoder(Record)
        try:
            self._records.extend(decoder.decode_lines(data))
            return
        except msgspec.DecodeError:
            pass
        for line in data.split(b"\n"):
            if not line:
                continue
            try:
                self._records.append(decoder.decode(line))
            except msgspec.DecodeError:
                self._torn += 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.history", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--stall-ms-max", type=float, default=None)
    options = parser.parse_args(arguments)
    try:
        history = History.read(*options.files)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    verdict = history.check(stall_ms_max=options.stall_ms_max)
    print(verdict)
    return verdict.exit_status


if __name__ == "__main__":
    sys.exit(main())
