"""PostgreSQL of the kit: gone with its test, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.kit.eventually import wait_until
from tests.kit.postgres import SharedMemory, runs

START_AND_HANG = """
import sys
from tests.kit.postgres import PostgresProcess

with PostgresProcess() as server:
    print(server.pid, server.folder, server.memory_left().identifier, flush=True)
    sys.stdin.read()
"""


def test_postgresql_is_gone_with_the_process_that_started_it() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", START_AND_HANG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        pid, folder, memory = starter.stdout.readline().split()
        assert Path(folder).exists()
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not runs(int(pid)) and not Path(folder).exists())
    SharedMemory(int(memory)).remove()
