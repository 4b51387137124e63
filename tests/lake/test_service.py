"""The role `lake`: a child that fills the tables, and a process that lives without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from angarium.lake.http import http_api
from angarium.lake.service import LOG, LakeService, build, check
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake
from angarium.runtime.application import Application
from angarium.runtime.process_report import read_processes
from angarium.runtime.runtime import Runtime
from angarium.server.http import Api
from angarium.server.process_metrics import declared_metric
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled
from tests.lake.kit import fill_journal
from tests.lake.test_pipeline import client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Java, Spark and a first batch, on a machine that is busy with other things.
DEADLINE_S = 280.0


@asynccontextmanager
async def role(runtime: Runtime) -> AsyncIterator[LakeService]:
    check(runtime.settings, Application())
    service = build(runtime, Application())
    assert isinstance(service, LakeService)
    await service.start()
    try:
        yield service
    finally:
        await service.stop(8)


@pytest.mark.timeout(900)
async def test_the_role_fills_the_lake_and_reports(redis_url: str, tmp_path: Path) -> None:
    options = {"start_delay_ms": 0, "audit_interval_s": 1, "master": "local[1]"}
    async with sample_runtime(redis_url, home=tmp_path, lake=options) as runtime:
        fill_journal(client_of(redis_url), f"{runtime.settings.prefix}journal", entries=5, events=4)

        async def reported() -> bool:
            found = await read_processes(runtime)
            return any(e.role == "lake" and e.figures.get("events") == 20 for e in found)

        async with role(runtime) as service:

            def told(name: str) -> bool:
                """Shows what the child said, should this never become true."""
                log = (tmp_path / LOG).read_text(errors="replace")[-2_000:]
                assert service.report.get(name) == 20, (service.report, log)
                return True

            await eventually(lambda: told("events"), DEADLINE_S, ignoring=(OSError,))
            # Nothing of these made-up messages is in Redis: the role's own audit says so.
            await eventually(lambda: told("audit_wrong"), DEADLINE_S)
            await eventually(reported, DEADLINE_S)
            (process,) = [each for each in await read_processes(runtime) if each.role == "lake"]
            numbers = {n: v for n, v in process.figures.items() if not isinstance(v, str)}
            assert {"batches", "audit_wrong", "journal_batch_rows", "freshest_s"} <= set(numbers)
            assert [name for name in numbers if declared_metric("lake", name) is None] == []
            child = service._child
        assert Lake.of(runtime.settings).rows("events") == 20
        assert child is not None
        assert child.returncode is not None
        assert not await read_processes(runtime)


async def test_where_no_lake_can_be_the_role_says_so_and_lives(
    redis_url: str, filled: Filled
) -> None:
    """Here the folder holds another keyspace's lake; without Java it is the same line."""
    given: dict[str, Any] = {
        "lake_url": filled.lake.url, "lake": {"start_delay_ms": 0}, "home": filled.settings.home,
    }  # fmt: skip
    async with sample_runtime(redis_url, **given) as runtime, role(runtime) as service:
        await eventually(lambda: service.report["state"] == "off", DEADLINE_S)
        assert "ANGARIUM_LAKE_URL" in str(service.report["reason"])
        assert service.ready


@asynccontextmanager
async def serving(runtime: Runtime) -> AsyncIterator[Any]:
    api = Api(runtime, [http_api(runtime, Application())])
    await api.start()
    try:
        async with aiohttp.ClientSession() as session:

            async def get(path: str) -> tuple[int, Any]:
                url = f"http://127.0.0.1:{api.ports['http']}{path}"
                async with session.get(url) as answer:
                    return answer.status, await answer.json(content_type=None)

            yield get
    finally:
        await api.stop(10)


async def test_the_api_tells_of_tables_audits_and_histories(filled: Filled) -> None:
    settings = filled.settings.model_copy(
        update={"http": filled.settings.http.model_copy(update={"port": 0})}
    )
    async with Runtime.open(settings) as runtime, serving(runtime) as get:
        status, lake = await get("/v1/lake")
        assert status == 200
        assert lake["running"] is False
        assert {each["name"] for each in lake["tables"]} >= {"events", "messages"}
        assert lake["behind_ms"] >= 0
        subject = filled.open["dispatch", "message"][0]
        status, history = await get(f"/v1/lake/history/{subject}")
        assert history["events"][0]["event"] == "accepted"
        assert (await get("/v1/lake/history/nobody"))[1]["events"] == []


WITHOUT_PACKAGES = """
import sys
for name in ("pyspark", "pyarrow", "deltalake", "duckdb", "numpy", "pandas"):
    sys.modules[name] = None
import angarium.cli.lake, angarium.lake.http, angarium.lake.service
"""


def test_api_role_and_commands_are_there_without_the_packages_of_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


async def test_the_api_without_a_lake_says_so(redis_url: str, tmp_path: Path) -> None:
    async with (
        sample_runtime(redis_url, home=tmp_path, http={"port": 0}) as runtime,
        serving(runtime) as get,
    ):
        assert (await get("/v1/lake"))[1]["tables"] == []
        status, problem = await get("/v1/lake/audit")
        assert (status, problem["code"]) == (404, "lake_empty")


async def test_an_archived_transaction_is_found_by_its_id(
    spark: SparkSession, tmp_path: Path
) -> None:
    from angarium.lake.lookup import Lookup

    lake = Lake(str(tmp_path))
    table = LakeTables(lake)["transactions"]
    rows = spark.range(3).selectExpr(
        "concat('t', id) as id", "concat('{\"id\":\"t', id, '\"}') as state"
    )
    empty = [f"cast(null as {each.dataType.simpleString()}) as {each.name}"
             for each in table.schema if each.name not in ("id", "state")]  # fmt: skip
    table.write(rows.selectExpr("*", *empty), writer="archive", batch=0)
    assert await Lookup(lake).find_transaction("t1") == b'{"id":"t1"}'
    assert await Lookup(lake).find_transaction("t9") is None
