"""`angarium lake …` as a user meets it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium.cli import main as cli
from angarium.lake import java, tables
from angarium.lake import spark as lake_spark
from angarium.lake.pipeline import reason_of
from angarium.lake.query import ask
from angarium.lake.runner import lease_of
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake
from angarium.settings import load
from tests.kit.sample import sample_settings
from tests.lake.filled import Filled, environment_of
from tests.lake.filled import filled as filled
from tests.lake.kit import fill_journal
from tests.lake.test_pipeline import client_of
from tests.lake.test_replay import results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_S_MAX = 300
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def told(filled: Filled, no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in filled.environment.items():
        monkeypatch.setenv(name, value)
    return filled.environment


def ran(capture: Capture, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["lake", *arguments])
    said = capture.readouterr()
    return code, said.out, said.err


def command(told: dict[str, str], *arguments: str) -> tuple[int, str]:
    """In a process of its own: Spark starts in it."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("angarium")), "lake", *arguments],
        env={**os.environ, **told, "ANGARIUM_LAKE__MASTER": "local[1]"},
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def as_json(capture: Capture, *arguments: str) -> tuple[int, Any]:
    code, out, _ = ran(capture, *arguments, "--json")
    return code, json.loads(out)


def test_an_audit_of_a_clean_run_exits_0_and_the_newest_is_shown_at_once(
    told: dict[str, str], capsys: Capture
) -> None:
    assert command(told, "audit", "--now")[0] == 0
    code, out, _ = ran(capsys, "audit")
    assert code == 0
    assert "nothing is unexplained" in out


def test_an_audit_with_a_deleted_message_exits_1_and_names_it(
    told: dict[str, str], filled: Filled
) -> None:
    import redis

    victim = filled.open["transactions", "transaction"][0]
    name = f"{filled.settings.prefix}stateH:{victim}"
    client: Any = redis.Redis.from_url(filled.settings.redis_url)
    kept = client.dump(name)
    client.delete(name)
    try:
        code, out = command(told, "audit", "--now")
        coded, found = command(told, "audit", "--json")
        value = json.loads(found)
    finally:
        client.restore(name, 0, kept)
    assert code == coded == 1
    assert f"unexplained: transactions transaction {victim}" in out
    assert [each["subject"] for each in value["findings"]] == [victim]


def test_an_audit_can_compare_the_statistics_too(told: dict[str, str]) -> None:
    code, found = command(told, "audit", "--now", "--reconcile", "--json")
    value = json.loads(found)
    assert code == 0
    assert value["reconciliation"]["differences"] == []


def test_a_query_prints_a_table_or_json(told: object, filled: Filled, capsys: Capture) -> None:
    code, out, _ = ran(capsys, "query", "select module, count(*) as n from events group by 1")
    assert code == 0
    assert "transactions" in out
    code, value = as_json(capsys, "query", "select count(*) as n, min(date) as day from events")
    assert value == [{"n": filled.lake.rows("events"), "day": "2025-10-09"}]
    code, out, _ = ran(capsys, "query", "select chr(27) || '[2J' as found")  # F70
    assert (code, out.splitlines()) == (0, ["found", "\\x1b[2J"])
    code, _, err = ran(capsys, "query", "selec")
    assert code == 1
    assert err.startswith("angarium: the query can't be run")
    assert err.count("\n") == 1


def test_a_report_is_written_where_it_is_wanted(
    told: object, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "r.html"
    code, value = as_json(capsys, "report", "-o", str(file))
    assert code == 0
    assert value["bytes"] == len(file.read_bytes())
    code, _, err = ran(capsys, "report", "-o", str(tmp_path / "no" / "r.html"))
    assert code == 1
    assert "can't be written" in err


def test_a_replay_only_shows_until_it_is_told_to_send(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    settings = sample_settings(redis_url, home=tmp_path)
    results(spark, LakeTables(Lake.of(settings)), 3)
    told, client = environment_of(settings), client_of(redis_url)
    inbox = f"{settings.prefix}messages:inbox"
    code, out = command(told, "replay", "try", "--from", "results")
    assert code == 0
    assert out.endswith("would send 3, 0 were sent before; nothing was sent: add --send\n")
    assert client.xlen(inbox) == 0
    code, out = command(told, "replay", "try", "--from", "results", "--send", "--json")
    assert code == 0
    assert json.loads(out) == {"replay": "try", "sent": 3, "sent_before": 0}
    assert client.xlen(inbox) == 3


def test_one_pass_beside_a_running_lake_says_who_fills_it_and_exits_0(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    settings = sample_settings(redis_url, home=tmp_path)
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)
    with lease_of(settings, Lake.of(settings), redis_url) as running:
        assert running.acquire()
        code, out, _ = ran(capsys, "run", "--once")
    assert code == 0
    assert out == f"{running.holder} fills this lake now; there is nothing to do here\n"
    assert Lake.of(settings).existing() == []


def test_compacting_leaves_a_file_for_each_folder(told: dict[str, str]) -> None:
    code, out = command(told, "compact", "--json")
    assert code == 0
    assert all(each["after"] <= each["before"] for each in json.loads(out).values())


def test_commands_on_a_lake_that_never_ran_say_what_to_do(
    redis_url: str, no_settings: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_url)
    monkeypatch.setenv("ANGARIUM_PREFIX", "never:")
    for command in (("audit",), ("report",), ("query", "select 1"), ("compact",)):
        code, _, err = ran(capsys, *command)
        assert code == 1
        assert "angarium lake run --once" in err
        assert err.count("\n") == 1


def test_a_lake_of_another_keyspace_is_refused_by_name(
    told: object, filled: Filled, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ANGARIUM_PREFIX", "strange:")
    code, _, err = ran(capsys, "audit")
    assert code == 2
    assert err.startswith("angarium: ANGARIUM_LAKE_URL: ")
    assert "choose another folder" in err


def refused(capture: Capture, *arguments: str) -> str:
    """What `run` says instead of starting Spark: one line, and the exit code of a setting."""
    code, out, err = ran(capture, "run", "--once", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_without_java_a_run_says_what_to_install(
    told: object, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "FOLDERS", ())
    monkeypatch.setattr(java, "_wheel", lambda: None)
    assert "Spark needs Java 17 or 21" in refused(capsys)


def test_with_too_little_memory_a_run_says_how_much_is_needed(
    told: object, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(lake_spark, "memory_mib", lambda: 700)
    assert "700 MiB are free, and Spark needs 1024 MiB" in refused(capsys)


def test_a_folder_of_another_layout_is_refused_by_every_command(
    redis_url: str, no_settings: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_url)
    monkeypatch.setenv("ANGARIUM_PREFIX", "layout:")
    monkeypatch.setenv("ANGARIUM_HOME", str(no_settings / "home"))
    with monkeypatch.context() as later:
        later.setattr(tables, "LAYOUT_VERSION", 999)
        Lake.of(load()).identity()
    assert "'_lake' has layout 999" in refused(capsys)
    for command in (("audit",), ("report",), ("query", "select 1"), ("compact",)):
        code, _, err = ran(capsys, *command)
        assert code == 2
        assert "'_lake' has layout 999" in err
        assert "choose another folder" in err


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o1.collectToPython.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: most recent "
            "failure: Lost task 0.0: org.apache.spark.SparkException: Python worker exited "
            "unexpectedly (crashed). Consider setting 'a' or 'b'\n\tat x\nCaused by: y: Reset",
            "Python worker exited unexpectedly (crashed)",
        ),
        (
            "An exception was raised by the Python Proxy.\npyspark.errors.PythonException: An "
            "exception was thrown from the Python worker:\nOSError: [Errno 5] Input/output error",
            "[Errno 5] Input/output error",
        ),
        (
            "OSError: x\nangarium.lake.errors.TableUnwritable: lake/events: its disk is full",
            "lake/events: its disk is full",
        ),
        (
            "x\njava.io.IOException: No space left on device\n\tat java.io.FileOutputStream",
            "its disk is full; free some space and start again",
        ),
        (
            "OSError: Kernel error -> Generic error\n  ↳ No space left on device (os error 28)",
            "its disk is full; free some space and start again",
        ),
    ],
)
def test_of_a_page_of_stack_one_line_is_told(error: str, reason: str) -> None:
    assert reason_of(error) == reason


def may_mount() -> bool:
    """Whether a process may have file systems of its own here."""
    try:
        probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


# A disk of one mebibyte, a run that fills it; then it grows, and there is another run.
FULL_DISK = """
mount -t tmpfs -o size=1m none lake && {
    angarium lake run --once 2>full
    echo $? >code
    mount -o remount,size=200m none lake && angarium lake run --once >done && cp -r lake kept
}
"""


@pytest.mark.timeout(3 * RUN_S_MAX + 100)
@pytest.mark.skipif(not may_mount(), reason="no file system of its own may be mounted here")
def test_a_full_disk_is_one_line_and_after_it_every_row_is_there_once(
    redis_url: str, tmp_path: Path
) -> None:
    settings = sample_settings(redis_url, home=tmp_path, lake_url=str(tmp_path / "kept"))
    client, key = client_of(redis_url), f"{settings.prefix}journal"
    total = fill_journal(client, key, entries=400, events=100)
    (tmp_path / "lake").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_HOME": str(tmp_path),
        "ANGARIUM_LAKE_URL": str(tmp_path / "lake"),
        "ANGARIUM_LAKE__BATCH_ROWS_MAX": "4000",
    }
    subprocess.run(
        ["unshare", "-rm", "sh", "-c", FULL_DISK],
        cwd=tmp_path, env=environment, check=True, timeout=3 * RUN_S_MAX,
    )  # fmt: skip
    told = (tmp_path / "full").read_text()
    assert (tmp_path / "code").read_text() == "1\n"
    assert told.startswith("angarium: angarium-journal stopped: ")
    assert told.count("\n") == 1
    assert "its disk is full; free some space and start again" in told
    assert told.endswith(f"Spark's log is {tmp_path / 'lake-run.log'}\n")
    assert "stored " in (tmp_path / "done").read_text()
    counts = "select count(*), count(distinct sequence) from events"
    assert ask(Lake.of(settings), counts).rows == [(total, total)]
    lives = "select count(*), sum(accepts), sum(events) from messages_open"
    assert ask(Lake.of(settings), lives).rows == [(total, total, total)]
    for level in ("stats_fine", "stats_medium", "stats_coarse"):
        assert ask(Lake.of(settings), f"select sum(count) from {level}").rows == [(total,)]
