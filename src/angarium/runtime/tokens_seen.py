"""Records that the API or the gateway has had tokens, so that it stays closed without them.

Without tokens both are open on loopback. After the first token, an empty list means that tokens
were revoked, removed or lost, so every request still needs one. This is recorded in two places, and
each is sufficient: a file in the home folder, which survives the loss of Redis, and a key in Redis,
which processes with other home folders read. A process that finds one of them missing writes it
again. The record is never removed; `ANGARIUM_ACCESS=open` opens both explicitly.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from angarium.runtime import keys, log
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

Surface = Literal["api", "gateway"]


class TokenSurface(NamedTuple):
    surface: str


REMEMBER_TOKENS: Transition[Any] = Transition(
    "angarium.runtime",
    "remember_tokens",
    keys={"seen": keys.TOKENS_SEEN},
    args=TokenSurface,
    replies={"remembered": None, "known": None},
)
FILE_TEXT = """This installation has had tokens, so every request needs one, also if none is left.
`angarium token create NAME --scope admin` creates a token of the API; tokens of the gateway are in
ANGARIUM_PICKUP__TOKENS. ANGARIUM_ACCESS=open opens both on loopback. Do not delete this file.
"""


class TokensSeen:
    """One for each process and surface (the API or the gateway)."""

    def __init__(self, runtime: Runtime, surface: Surface) -> None:
        self._runtime = runtime
        self._surface = surface
        self._name = runtime.keyspace.name(keys.TOKENS_SEEN, 0)
        self._path = file_path(runtime.settings.home, runtime.settings.prefix, surface)
        self._log = log.logger("angarium.access")
        self._warned = False
        self.ever = False

    async def look(self, *, has_tokens: bool) -> bool:
        """Whether a token exists or ever existed, in this or another process."""
        self.ever = self.ever or has_tokens or self._path.exists()
        known = await self._runtime.redis.call("HEXISTS", self._name, self._surface, key=self._name)
        self.ever = self.ever or bool(known)
        if self.ever:
            self.write_file()
            if not known:
                await self._runtime.call(REMEMBER_TOKENS, 0, TokenSurface(self._surface))
        return self.ever

    def write_file(self) -> None:
        if self._path.exists():
            return
        try:
            _write_atomically(self._path, FILE_TEXT)
        except OSError as error:
            # The key in Redis is enough, and this process knows it while it runs.
            if not self._warned:
                self._warned = True
                self._log.warning("tokens_seen_not_written", path=str(self._path), error=str(error))


def file_path(home: Path, prefix: str, surface: Surface) -> Path:
    """Each prefix has its own file, because a home folder may serve several prefixes."""
    part = f"-{hashlib.sha256(prefix.encode()).hexdigest()[:12]}" if prefix else ""
    return home / f"tokens-seen-{surface}{part}"


def _write_atomically(path: Path, text: str) -> None:
    """After a crash the file has all of its text, or does not exist."""

    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with scratch.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
