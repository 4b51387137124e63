"""Which installation a command means.

A setting decides first. Without one it is the home folder here or in the nearest folder above it,
then the installation that runs: `up` and `serve` announce theirs in a folder of the user. A command
never starts an empty server, because it would answer for an installation that nobody runs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from angarium.cli.output import warn

if TYPE_CHECKING:
    from angarium.settings import Settings

HOME_NAME = ".angarium"


def load_installation(*sufficient: str) -> Settings:
    """The settings of a command that reads or changes an installation. A setting in `sufficient`
    names as much of one as the command needs."""
    from angarium.settings import load

    settings = load()
    if settings.redis_url != "embedded" or settings.model_fields_set & {"home", *sufficient}:
        return settings
    home = find_home(Path.cwd())
    if home != settings.home:
        warn(f"using the installation in {home}")
    return load(home=home)


def find_home(folder: Path) -> Path:
    from angarium.runtime.errors import InputInvalid

    for each in (folder, *folder.parents):
        if (each / HOME_NAME / "redis").is_dir():
            return each / HOME_NAME
    running = running_homes()
    if len(running) == 1:
        return running[0]
    if running:
        found = ", ".join(str(each) for each in running)
        raise InputInvalid(
            f"several installations run ({found}); set ANGARIUM_HOME to the one you mean"
        )
    raise InputInvalid(
        "there is no installation in this folder or above it, and none runs; start one with "
        "`angarium up`, or let this command create one here: angarium --new …"
    )


def running_homes() -> list[Path]:
    """The homes that `up` and `serve` announced and whose embedded server runs."""
    found = set()
    from angarium.redis.embedded.server import is_running

    with contextlib.suppress(OSError):
        for path in announcements().iterdir():
            home = Path(path.read_text())
            if is_running(home):
                found.add(home)
    return sorted(found)


def keep_private(home: Path) -> None:
    """What this process and its children write from now on, only this user can read: the database,
    the lake and the logs hold users' data. Spark gives its files modes of its own, inside the
    lake's folder, which is private. A home of 0.1 was readable by everybody."""
    os.umask(0o077)
    with contextlib.suppress(OSError):
        if home.name == HOME_NAME:
            home.chmod(0o700)


@contextmanager
def announced(settings: Settings) -> Iterator[None]:
    """Lets commands in other folders find the embedded server of this process."""
    keep_private(settings.home)
    if settings.redis_url != "embedded":
        yield
        return
    # Without the announcement commands need ANGARIUM_HOME; that is no reason not to start.
    with contextlib.suppress(OSError):
        folder = announcements()
        _make_private(folder)
        (folder / str(os.getpid())).write_text(str(settings.home))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (announcements() / str(os.getpid())).unlink(missing_ok=True)


def announcements() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "angarium"
    folder = Path(tempfile.gettempdir()) / f"angarium-{os.getuid()}"
    # In a folder that everybody may write to, another user could have made it.
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.getuid()):
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _make_private(folder: Path) -> None:
    from angarium.redis.embedded.server import is_running

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.iterdir():
        if not is_running(Path(path.read_text())):
            path.unlink(missing_ok=True)  # of a process that was killed
