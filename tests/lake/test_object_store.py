"""A lake in an object store: a server that speaks S3, and the tables behind its HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from angarium.cli import main as cli
from angarium.lake.tables import Lake
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled
from tests.lake.store import Store
from tests.lake.store import store as store
from tests.lake.store import url as url
from tests.lake.test_pipeline import contents

RUN_S_MAX = 240


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
def test_a_run_fills_a_lake_there_and_what_is_repeated_adds_nothing(
    filled: Filled, store: Store, url: str, tmp_path: Path
) -> None:
    """With Spark as it is: neither its checkpoint nor its readers know what an object store is."""

    def run(home: str) -> dict[str, Any]:
        given = {
            "ANGARIUM_LAKE_URL": url,
            "ANGARIUM_HOME": str(tmp_path / home),
            "ANGARIUM_DATABASE_URL": filled.settings.database_url,  # the audit looks there, too
        }
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
    done = run("two")  # on another machine, without the checkpoint of the first
    assert contents(Lake.of(here)) == contents(filled.lake)
    assert done.get("audit_wrong") == 0, done
