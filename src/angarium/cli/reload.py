"""`--reload`, for development: roles that run the application's functions start again when a file
of the application changes.

They run in a child process, because modules that are loaded can't be replaced safely. A change
stops the child as SIGTERM does: it finishes or gives back its work. Files are polled, which works
on every file system. A child that fails, for example by a syntax error, starts again with the next
change.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from angarium.cli.output import warn
from angarium.demo.processes import START_SCRIPT
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.service import Service
from angarium.server.host import STOP_DEADLINE_S, Composition

LOOK_S = 0.5
FILES_MAX = 10_000  # a folder with more is not watched whole
SUFFIXES = (".py", ".toml")

# File → its time and size.
Files = dict[Path, tuple[int, int]]


class ReloadedRoles(Service):
    """Runs `angarium` with these arguments, and again after each change below the folders."""

    def __init__(self, arguments: Sequence[str], folders: Sequence[Path]) -> None:
        super().__init__("reload")
        self._arguments = arguments
        self._folders = folders
        self._files: Files = {}
        self._child: asyncio.subprocess.Process | None = None

    async def on_start(self) -> None:
        self._files = await asyncio.to_thread(files_below, self._folders)
        await self._start_child()
        self.loop("watch", self._look, LOOK_S)

    async def on_quiet(self) -> None:
        self._signal_child(signal.SIGTERM)

    async def on_stop(self) -> None:
        if self._child is not None:
            await self._child.wait()

    async def on_close(self) -> None:
        self._signal_child(signal.SIGKILL)

    async def _look(self) -> None:
        found = await asyncio.to_thread(files_below, self._folders)
        if found != self._files:
            changed = sorted({path for path, _ in found.items() ^ self._files.items()})
            self._files = found
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            warn(f"{changed[0].name}{more} changed; starting the functions again")
            await self._stop_child()
            await self._start_child()
        elif self._child is not None and self._child.returncode is not None:
            code = self._child.returncode
            warn(f"the functions ended with code {code}; they start again when a file changes")
            self._child = None

    async def _start_child(self) -> None:
        # A session of its own: Ctrl-C reaches this process only, which passes it on once.
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", START_SCRIPT, *self._arguments, start_new_session=True
        )

    async def _stop_child(self) -> None:
        child = self._child
        if child is None:
            return
        self._signal_child(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_DEADLINE_S + 2):
                await child.wait()
        except TimeoutError:
            self._signal_child(signal.SIGKILL)
            await child.wait()

    def _signal_child(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)


@asynccontextmanager
async def beside(composition: Composition, roles: ReloadedRoles) -> AsyncIterator[list[Service]]:
    """The services, then the reloaded roles: they need the embedded server of this process."""
    async with composition as services:
        yield [*services, roles]


def watched_folders(application: str | None) -> list[Path]:
    """This folder, and that of the application if it is installed elsewhere."""
    if not application:
        problem = "there is no application whose files could be watched"
        raise SettingInvalid("--reload", problem, "name one as module:app")
    here = Path.cwd()
    spec = importlib.util.find_spec(application.partition(":")[0].partition(".")[0])
    elsewhere = Path(spec.origin).parent if spec is not None and spec.origin else here
    return [here] if elsewhere.is_relative_to(here) else [here, elsewhere]


def files_below(folders: Sequence[Path]) -> Files:
    found: Files = {}
    for path in _paths(folders):
        with suppress(OSError):  # deleted since it was listed
            status = path.stat()
            found[path] = (status.st_mtime_ns, status.st_size)
        if len(found) == FILES_MAX:
            break
    return found


def _paths(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        for place, names, files in os.walk(folder):
            if "pyvenv.cfg" in files:  # an environment with its packages
                names.clear()
                continue
            names[:] = [name for name in names if not name.startswith((".", "__", "node_modules"))]
            yield from (Path(place, name) for name in files if name.endswith(SUFFIXES))
