"""Several handles and several processes on one SQLite file, and kill -9: what was stored is there.

A round: a process with two roles stores, its API opens the file a second time, another process
opens and closes it, the first stores more and is killed. The next process must find all of it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.faults.database_roles import Counts, run_looker, run_roles
from tests.faults.profile import rounds

ROUNDS = rounds(10, 200)
ROWS = 3
ANSWER_S_MAX = 60.0
LOOK = ("look", 0, 0)
MODULES = ["tests.faults.database_roles", "alembic.script", "sqlalchemy.ext.asyncio", "aiosqlite"]

pytestmark = [pytest.mark.faults, pytest.mark.timeout(rounds(120, 900))]


class Child:
    """A process that answers questions; `kill` is kill -9."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    def ask(self, question: object) -> Any:
        self._pipe.send(question)
        assert self._pipe.poll(ANSWER_S_MAX), "no answer"
        return self._pipe.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(ANSWER_S_MAX)


@contextmanager
def started(target: Any, url: str) -> Iterator[Child]:
    # A server that has loaded all modules forks the children, so that a round takes moments.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(url, theirs), daemon=True)
    process.start()
    child = Child(process, ours)
    try:
        yield child
    finally:
        child.kill()


def test_nothing_stored_is_lost_when_processes_look_and_die(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/angarium.sqlite"
    stored = 0
    with started(run_looker, url) as looker:
        for number in range(ROUNDS):
            with started(run_roles, url) as roles:
                found = roles.ask(LOOK)
                assert found == Counts(stored, stored), f"round {number} begins with a loss"
                for asked, question in ((roles, LOOK), (looker, True)):
                    roles.ask(("store", stored, ROWS))
                    stored += ROWS
                    assert asked.ask(question) == Counts(stored, stored), f"round {number}"
                roles.ask(("store", stored, ROWS))
                stored += ROWS
                roles.kill()
        assert looker.ask(True) == Counts(stored, stored)
    print(f"\n{ROUNDS} rounds, {stored} messages and {stored} transactions stored, none lost")
