"""Users' own jobs: tables, streams and messages made of the lake's rows, each once."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium.lake.errors import LakeStopped
from angarium.lake.pipeline import Pipeline
from angarium.lake.query import ask
from angarium.lake.tables import Lake, LakeTable
from angarium.lake.user_jobs import jobs_of
from angarium.runtime.application import Application
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.settings import CommonSettings as Settings
from tests.kit.sample import sample_settings
from tests.lake.filled import SLOW_START, STARTS_MAX
from tests.lake.test_pipeline import client_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PASS_S_MAX = 300
EXAMPLE = Path(__file__).parents[2] / "examples" / "lake_enrich" / "enrich.py"


def application() -> Application:
    app = Application()

    @app.table("doubled", of="results")
    def doubled(results: DataFrame) -> DataFrame:
        return results.selectExpr("message_id", "concat(message_id, message_id) as twice")

    @app.stream("out", of="results")
    def out(results: DataFrame) -> DataFrame:
        return results.repartition(2).select("message_id")

    @app.stream(of="doubled", into="dispatch")
    def again(doubled: DataFrame) -> DataFrame:
        return doubled.selectExpr("twice as payload")

    return app


def run(spark: SparkSession, settings: Settings, app: Application) -> Pipeline:
    """One pass, begun again where the machine was too busy to start a worker."""
    for _ in range(STARTS_MAX):
        pipeline = Pipeline(spark, settings, settings.redis_url, app)
        pipeline.start(once=True)
        try:
            assert any(pipeline.wait(1) for _ in range(PASS_S_MAX)), "the queries did not end"
            if not any(pipeline.figures.jobs_behind.get(each.name) for each in pipeline.jobs):
                return pipeline
        except LakeStopped as error:
            if SLOW_START not in str(error):
                raise
        finally:
            pipeline.stop()
    raise AssertionError("Spark's workers do not start")


def put(client: Any, settings: Settings, first: int, count: int) -> None:
    for number in range(first, first + count):
        fields = {"message_id": f"m{number}", "consumer_id": "w"}
        client.xadd(f"{settings.prefix}messages:processed", fields)


def check(client: Any, settings: Settings, total: int) -> None:
    names = Counter(f"m{number}" for number in range(total))
    rows = ask(Lake.of(settings), "select message_id, twice from doubled").rows
    assert Counter(row[0] for row in rows) == names
    assert all(twice == one * 2 for one, twice in rows)
    out = [fields[b"message_id"].decode() for _, fields in client.xrange("out")]
    assert Counter(out) == names
    inbox = client.xrange(f"{settings.prefix}messages:inbox")
    payloads = Counter(fields[b"payload"].decode() for _, fields in inbox)
    assert payloads == Counter(name * 2 for name in names)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", ["doubled", "jobs"])
def test_every_row_is_there_once_although_a_run_dies_in_a_job(
    spark: SparkSession, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Before the table's commit, and after rows were sent and before it was noted."""
    settings = sample_settings(redis_url, home=tmp_path)
    client = client_of(redis_url)
    client.delete("out")
    put(client, settings, 0, 5)
    run(spark, settings, application())
    put(client, settings, 5, 5)
    commit = LakeTable._commit

    def dies(self: LakeTable, *args: Any, **more: Any) -> Any:
        if self.name == where:
            raise RuntimeError("killed here")
        return commit(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "_commit", dies)
        broken = run(spark, settings, application())
        assert "killed here" in broken.figures.failed_jobs.values()
    assert Lake.of(settings).rows("results") == 10  # the rest went on
    run(spark, settings, application())
    check(client, settings, 10)


@pytest.mark.timeout(400)
def test_a_job_that_raises_is_stopped_by_itself_and_named(
    spark: SparkSession, redis_url: str, tmp_path: Path
) -> None:
    settings = sample_settings(redis_url, home=tmp_path)
    client = client_of(redis_url)
    app = Application()

    @app.table("bad", of="results")
    def bad(results: DataFrame) -> DataFrame:
        return results.select("no_such_column")

    @app.table("good", of="results")
    def good(results: DataFrame) -> DataFrame:
        return results.select("message_id")

    put(client, settings, 0, 3)
    pipeline = run(spark, settings, app)
    assert "no_such_column" in pipeline.figures.failed_jobs["bad"]
    assert pipeline.figures.shown()["job_behind_good"] == 0
    assert Lake.of(settings).rows("good") == 3
    assert Lake.of(settings).rows("results") == 3


@pytest.mark.timeout(400)
def test_the_example_does_what_its_first_line_says(
    spark: SparkSession, redis_url: str, tmp_path: Path
) -> None:
    settings = sample_settings(redis_url, home=tmp_path)
    client = client_of(redis_url)
    client.delete("messages:enriched")
    spec = importlib.util.spec_from_file_location("enrich", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for number in range(3):
        client.xadd(
            f"{settings.prefix}messages:processed",
            {"message_id": number, "consumer_id": 1, "status": "ok"},
        )
    for _ in range(2):
        run(spark, settings, module.app)
        found = [fields for _, fields in client.xrange("messages:enriched")]
        assert sorted(each[b"message_id"] for each in found) == [b"0", b"1", b"2"]
        assert {each[b"status"] for each in found} == {b"OK"}
        assert all(len(each[b"day"]) == 10 for each in found)


@pytest.mark.parametrize(
    ("name", "of", "problem"),
    [
        ("messages", "results", "can't be the name"),
        ("Bad Name", "results", "can't be the name"),
        ("mine", "nowhere", "which no job can follow"),
    ],
)
def test_a_job_that_can_not_be_is_refused_by_name(name: str, of: str, problem: str) -> None:
    app = Application()
    app.table(name, of=of)(lambda rows: rows)
    with pytest.raises(SettingInvalid, match=problem):
        jobs_of(app)


def test_a_stream_needs_a_key_or_a_module() -> None:
    with pytest.raises(TypeError, match="needs the key"):
        Application().stream(of="results")
