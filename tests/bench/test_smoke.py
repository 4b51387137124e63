"""`make bench` in miniature: parts run as processes of their own, and the page is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.parts import NAMES
from benchmarks.printed import number
from benchmarks.result import load

from tests.kit.roles import ROOT

SHORT = {"ROUNDS": "1", "SCALE": "0.005", "PEERS": "", "PARTS": "bullmq,queue"}


def bench(folder: Path, only: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **SHORT, "ONLY": only, **more}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "--into", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_a_small_run_gives_results_and_a_page(tmp_path: Path) -> None:
    parts = ("batching", "dispatch", "transactions", "memory", "pickup_sessions")
    done = bench(tmp_path, ",".join(parts))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    text = (tmp_path / "benchmarks.md").read_text()
    for part in parts:
        result = load(part, tmp_path / "results")
        assert result is not None
        assert result.command.startswith(f"make bench ONLY={part} ROUNDS=1 SCALE=0.005")
        assert result.steal is not None
        assert all(section.rows for section in result.sections if section.title)
    dispatch = load("dispatch", tmp_path / "results")
    assert dispatch is not None
    (table,) = dispatch.sections
    assert [row[0].split()[0] for row in table.rows] == ["XREADGROUP", "bare", "Angarium,"]
    assert all((number(cell) or 0) > 0 for cell in table.column("messages/s"))
    assert "bench-memory.svg" in text
    assert "Not run yet: `make bench ONLY=lake`." in text


@pytest.mark.timeout(120)
def test_a_part_that_fails_leaves_the_last_results_and_says_so(tmp_path: Path) -> None:
    done = bench(tmp_path, "batching", ROUNDS="none")
    assert done.returncode == 1
    assert "failed: batching" in done.stderr
    assert "invalid literal" in done.stderr
    assert load("batching", tmp_path / "results") is None


def test_a_part_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    done = bench(tmp_path, "batchin")
    assert done.returncode == 2
    assert "batchin" in done.stderr
    assert all(name in done.stderr for name in NAMES)
