"""`angarium lake …` as a user meets it: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from angarium.cli import main as cli
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled

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


def as_json(capture: Capture, *arguments: str) -> tuple[int, Any]:
    code, out, _ = ran(capture, *arguments, "--json")
    return code, json.loads(out)


def test_an_audit_of_a_clean_run_exits_0(told: object, capsys: Capture) -> None:
    code, out, _ = ran(capsys, "audit")
    assert code == 0
    assert "nothing is unexplained" in out


def test_an_audit_with_a_deleted_message_exits_1_and_names_it(
    told: object, filled: Filled, capsys: Capture
) -> None:
    import redis

    victim = filled.open["transactions", "transaction"][0]
    name = f"{filled.settings.prefix}stateH:{victim}"
    client: Any = redis.Redis.from_url(filled.settings.redis_url)
    kept = client.dump(name)
    client.delete(name)
    try:
        code, out, _ = ran(capsys, "audit")
        coded, value = as_json(capsys, "audit")
    finally:
        client.restore(name, 0, kept)
    assert code == coded == 1
    assert f"unexplained: transactions transaction {victim}" in out
    assert [each["subject"] for each in value["findings"]] == [victim]


def test_an_audit_can_compare_the_statistics_too(told: object, capsys: Capture) -> None:
    code, value = as_json(capsys, "audit", "--reconcile", "--window-s", "100")
    assert code == 0
    assert value["reconciliation"]["differences"] == []


def test_a_query_prints_a_table_or_json(told: object, filled: Filled, capsys: Capture) -> None:
    code, out, _ = ran(capsys, "query", "select room, count(*) as n from events group by 1")
    assert code == 0
    assert "transactions" in out
    code, value = as_json(capsys, "query", "select count(*) as n, min(date) as day from events")
    assert value == [{"n": filled.lake.rows("events"), "day": "2025-10-09"}]
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


def test_a_replay_only_shows_until_it_is_told_to_send(told: object, capsys: Capture) -> None:
    code, out, _ = ran(capsys, "replay", "try", "--from", "processed")
    assert code == 0
    assert "nothing was sent: add --send" in out
    assert as_json(capsys, "replay", "try", "--from", "processed")[1]["sent_before"] == 0


def test_compacting_leaves_a_file_for_each_folder(told: object, capsys: Capture) -> None:
    code, value = as_json(capsys, "compact")
    assert code == 0
    assert all(each["after"] <= each["before"] for each in value.values())


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
