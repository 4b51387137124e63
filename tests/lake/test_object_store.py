"""A lake in an object store: a server that speaks S3, and the tables behind its HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from angarium.cli import main as cli
from angarium.lake.audit import audit
from angarium.lake.query import ask
from angarium.lake.schemas import TRANSACTIONS
from angarium.lake.tables import Lake
from tests.kit.eventually import wait_until
from tests.kit.leash import LeashedProcess
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled
from tests.lake.test_pipeline import contents

START_S_MAX = 60.0
RUN_S_MAX = 240


class Store:
    """An S3 server on a free port, with one bucket."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = LeashedProcess(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        )
        wait_until(self._made, START_S_MAX)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "something",
        }

    def _made(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/bucket"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT")) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def close(self) -> None:
        self._process.close()


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    found = Store()
    yield found
    found.close()


@pytest.fixture
def url(store: Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{request.node.name}"


def rows(first: int, count: int) -> pa.Table:
    made = [{"id": f"t{n}", "state": "{}"} for n in range(first, first + count)]
    return pa.Table.from_pylist(made, TRANSACTIONS.arrow())


def test_tables_are_written_read_and_compacted_there(url: str) -> None:
    from angarium.lake.sinks.delta import compact

    lake = Lake(url)
    assert lake.existing() == []
    lake.append("transactions", rows(0, 3), {"archive:0": 7})
    lake.append("transactions", rows(3, 3))
    assert lake.existing() == ["transactions"]
    assert lake.positions("transactions", "archive") == {0: 7}
    assert ask(lake, "select count(*), count(distinct id) from transactions").rows == [(6, 6)]
    assert compact(lake.path("transactions")).files_after == 1
    assert ask(lake, "select count(*), count(distinct id) from transactions").rows == [(6, 6)]


def test_writers_that_commit_at_once_do_not_lose_each_others_rows(url: str) -> None:
    """The store refuses a second object of the same name, which is what a commit rests on."""
    Lake(url).ensure("transactions")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: Lake(url).append("transactions", rows(n, 1)), range(12)))
    assert ask(Lake(url), "select count(distinct id) from transactions").rows == [(12,)]


def test_a_store_that_refuses_or_is_away_is_told_in_one_line(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_settings: Path
) -> None:
    def said(lake_url: str) -> str:
        monkeypatch.setenv("ANGARIUM_LAKE_URL", lake_url)
        assert cli.main(["lake", "query", "select 1"]) == 1
        return capsys.readouterr().err

    told = said("s3://nobodys/lake")
    assert told.startswith("angarium: s3://nobodys/lake can't be read: The specified bucket does")
    assert told.count("\n") == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert "Connection refused" in said(url)


@pytest.mark.timeout(600)
async def test_a_run_fills_a_lake_there_and_what_is_repeated_adds_nothing(
    filled: Filled, store: Store, url: str, tmp_path: Path
) -> None:
    """With Spark as it is: neither its checkpoint nor its readers know what an object store is."""

    def run(home: str) -> dict[str, Any]:
        given = {"ANGARIUM_LAKE_URL": url, "ANGARIUM_HOME": str(tmp_path / home)}
        done = subprocess.run(
            [str(Path(sys.executable).with_name("angarium")), "lake", "run", "--once", "--json"],
            env={**os.environ, **filled.environment, **store.environment, **given},
            capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    here = filled.settings.model_copy(update={"lake_url": url})
    run("one")
    assert contents(Lake.of(here)) == contents(filled.lake)
    run("two")  # on another machine, without the checkpoint of the first
    assert contents(Lake.of(here)) == contents(filled.lake)
    async with filled.runtime() as runtime:
        assert (await audit(runtime, Lake.of(here))).clean
