"""The declarative project: its tables are those of the lake, made here or by `spark-pipelines`."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow.dataset import dataset
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)

from angarium.lake.query import ask
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2] / "examples" / "lake_declarative"
RUN_S_MAX = 240


class Declared(GraphElementRegistry):
    """Keeps what a project declares, in its order."""

    def __init__(self) -> None:
        self.flows: dict[str, Any] = {}

    def register_output(self, output: Any) -> None:
        pass

    def register_flow(self, flow: Any) -> None:
        self.flows[flow.name] = flow.func

    def register_auto_cdc_flow(self, flow: Any) -> None:
        raise AssertionError(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError(sql_text)


def environment(filled: Filled) -> dict[str, str]:
    return {**filled.environment, "ANGARIUM_LAKE_URL": filled.lake.url}


def test_the_project_makes_the_same_tables_as_the_lake(
    filled: Filled, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(filled).items():
        monkeypatch.setenv(name, value)
    declared = Declared()
    with graph_element_registration_context(declared):
        runpy.run_path(str(PROJECT / "transformations" / "tables.py"))
    assert list(declared.flows) == [
        "events", "current", "messages", "messages_open", "stats_coarse", "latency", "busy_hours",
    ]  # fmt: skip
    for name, make in declared.flows.items():
        make().createOrReplaceTempView(name)
    for name in ("events", "messages", "messages_open", "stats_coarse"):
        columns = [each for each in spark.table(name).columns if each != "batch"]
        rows = [tuple(row) for row in spark.table(name).select(*columns).collect()]
        asked = ask(filled.lake, f"select {', '.join(columns)} from {name}").rows
        assert sorted(rows, key=repr) == sorted(asked, key=repr)
    assert spark.table("busy_hours").count() > 0


@pytest.mark.timeout(400)
def test_the_project_runs(filled: Filled, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(re.sub(r"(?m)^storage: .*$", f"storage: {tmp_path.as_uri()}", spec.read_text()))
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", spec.name],
        cwd=project,
        env={**os.environ, **environment(filled), "PYSPARK_PYTHON": sys.executable,
             "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout[-4000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr
    for name in ("events", "messages", "messages_open", "stats_coarse"):
        made = dataset(project / "spark-warehouse" / name, format="parquet")
        assert made.count_rows() == ask(filled.lake, f"select count(*) from {name}").rows[0][0]
