"""The lake on the dashboard, once it has run: tables, lag, the audit, the report, old histories."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from angarium.runtime import keys
from angarium.runtime.runtime import Runtime
from tests.dashboard.browser import browser, opened
from tests.dashboard.conftest import SystemWithData
from tests.dashboard.harness import RunningSystem, add_sample_data, run, running_system
from tests.dashboard.test_pages import UNREADABLE, WIDER
from tests.kit.java import QUICK, VARIABLE
from tests.kit.roles import ROOT
from tests.lake.filled import SLOW_START, STARTS_MAX

expect.set_options(timeout=60_000)
SPARK_S_MAX = 280


@pytest.fixture(scope="module")
def filed() -> Iterator[SystemWithData]:
    """What happened in every module, read by Spark and audited."""
    with running_system() as system:
        data = run(add_sample_data(system))
        _lake(system, "run", "--once")
        _lake(system, "audit")
        yield SystemWithData(system, data)


@pytest.fixture(scope="module")
def chrome(filed: SystemWithData) -> Iterator[Browser]:
    with browser() as found:
        yield found


def _lake(system: RunningSystem, *arguments: str) -> None:
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        VARIABLE: QUICK,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "ANGARIUM_HOME": str(system.role.home),
        "ANGARIUM_REDIS_URL": system.server.url,
        "ANGARIUM_PREFIX": system.prefix,
        "ANGARIUM_PARTITIONS": "2",
    }
    command = [str(Path(sys.executable).with_name("angarium")), "lake", *arguments]
    for _ in range(STARTS_MAX):
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=SPARK_S_MAX, check=False
        )
        if SLOW_START not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_tables_lag_and_the_last_audit_are_there(filed: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, f"{filed.url}/#/lake") as page:
        tables = page.get_by_role("region", name="Tables", exact=True).first
        for name in ("events", "messages", "results", "audit"):
            expect(tables.get_by_role("cell", name=name, exact=True)).to_be_visible()
        audit = page.get_by_role("region", name="Last audit", exact=True).first
        expect(audit.get_by_text("accepted = finished + in flight")).to_be_visible()
        expect(audit.get_by_role("cell", name="Dispatch: message")).to_be_visible()
        expect(page.get_by_text("Behind the journal")).to_be_visible()
        expect(page.get_by_role("definition").filter(has_text="clean")).to_be_visible()
        assert page.evaluate(WIDER) <= 0
        assert page.evaluate(UNREADABLE) == []


def test_the_report_is_a_file_that_shows_itself(
    filed: SystemWithData, chrome: Browser, tmp_path: Path
) -> None:
    with opened(chrome, f"{filed.url}/#/lake") as page:
        with page.expect_download() as found:
            page.get_by_role("button", name="Download the report").click()
        assert found.value.suggested_filename == "angarium-report.html"
        file = tmp_path / "report.html"
        found.value.save_as(file)
        page.goto(file.as_uri())
        expect(page.locator("svg").first).to_be_visible()


def test_a_history_that_redis_has_let_go_comes_from_the_lake(
    filed: SystemWithData, chrome: Browser
) -> None:
    async def forget() -> None:
        async with Runtime.open(filed.system.settings) as runtime:
            for partition in range(2):
                journal = runtime.keyspace.name(keys.JOURNAL, partition)
                await runtime.redis.call("XTRIM", journal, "MAXLEN", 0, key=journal)

    ended = filed.data.ended
    with opened(chrome, f"{filed.url}/#/search?id={ended}") as page:
        expect(page.get_by_text("Includes events from the lake.")).to_be_visible()
        history = page.locator(".history li")
        expect(history.first).to_contain_text("started")
        before = history.count()
        _in_another_thread(forget)
        page.reload()
        expect(page.get_by_text("Includes events from the lake.")).to_be_visible()
        expect(history).to_have_count(before)
        expect(history.first).to_contain_text("started")
        expect(page.locator(".history .faint", has_text="lake").first).to_be_visible()


def _in_another_thread(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The browser's own loop runs in this one."""
    thread = threading.Thread(target=lambda: run(function()))
    thread.start()
    thread.join()
