"""Collects the last lines of a child process's output.

One thread reads both pipes until `close`, so the child never blocks on a full pipe, and a
grandchild that inherited a pipe does not block the test.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable

LINES_MAX = 20_000
LINE_BYTES_MAX = 65_536
READ_BYTES = 65_536
LOOK_S = 0.2  # polled, because a pipe does not end with the process if a grandchild has it


class Output:
    """Takes over the two file descriptors and closes them."""

    def __init__(self, stdout: int, stderr: int) -> None:
        self._lines: dict[int, deque[str]] = {stdout: deque(maxlen=LINES_MAX)}
        self._lines[stderr] = deque(maxlen=LINES_MAX)
        self._partial: dict[int, bytes] = {stdout: b"", stderr: b""}
        self._stdout, self._stderr = stdout, stderr
        self._news = threading.Condition()
        self._ended = False
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def stdout(self) -> list[str]:
        with self._news:
            return list(self._lines[self._stdout])

    def stderr(self) -> list[str]:
        with self._news:
            return list(self._lines[self._stderr])

    def wait_for(
        self,
        condition: Callable[[list[str]], bool],
        deadline_s: float,
        alive: Callable[[], bool],
    ) -> bool:
        """Wait until the lines of stdout satisfy the condition.

        False if the deadline has passed, or if the process has ended and all its output is read.
        """

        give_up = time.monotonic() + deadline_s
        while True:
            ended = not alive()
            if ended:
                self.drain()
            with self._news:
                if condition(list(self._lines[self._stdout])):
                    return True
                left_s = give_up - time.monotonic()
                if ended or left_s <= 0:
                    return False
                self._news.wait(min(left_s, LOOK_S))

    def drain(self, deadline_s: float = 1.0) -> None:
        """Wait until both pipes have ended; a grandchild may hold them, so not for ever."""
        with self._news:
            self._news.wait_for(lambda: self._ended, deadline_s)

    def close(self) -> None:
        if self._stop_write >= 0:
            os.close(self._stop_write)
            self._stop_write = -1
            self._thread.join()

    def _run(self) -> None:
        sources = {self._stdout, self._stderr}
        with selectors.DefaultSelector() as selector:
            for source in (*sources, self._stop_read):
                selector.register(source, selectors.EVENT_READ)
            while sources:
                ready = [key.fd for key, _ in selector.select()]
                if self._stop_read in ready:
                    break
                for source in ready:
                    data = os.read(source, READ_BYTES)
                    self._take(source, data)
                    if not data:
                        selector.unregister(source)
                        sources.discard(source)
        with self._news:
            self._ended = True
            self._news.notify_all()
        for source in (self._stdout, self._stderr, self._stop_read):
            os.close(source)

    def _take(self, source: int, data: bytes) -> None:
        *whole, rest = (self._partial[source] + data).split(b"\n")
        # A line without end, or the last one of a pipe that ended, is a line as it stands.
        if rest and (not data or len(rest) > LINE_BYTES_MAX):
            whole, rest = [*whole, rest], b""
        self._partial[source] = rest
        with self._news:
            for line in whole:
                self._lines[source].append(line[:LINE_BYTES_MAX].decode(errors="replace"))
            self._news.notify_all()
