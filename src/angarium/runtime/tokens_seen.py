"""Remembers that the API or the gateway has had tokens, so that it never opens by itself.

Without tokens both are open on loopback. Once there was a token, an empty list means that tokens
were revoked, removed or lost, and not that everybody may come in. This is kept in two places, and
either one is enough: a file in the home folder, which outlives Redis, and a key in Redis, through
which processes with other home folders learn of it. Whoever finds one of them missing writes it
again. Nothing here ever forgets; `ANGARIUM_ACCESS=open` opens on purpose.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

from angarium.runtime import keys, log
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script

REMEMBER_TOKENS = load_script("angarium.runtime", "remember_tokens")

Surface = Literal["api", "gateway"]
NOTE = """There have been tokens here, so everybody needs one, also when none is left.
`angarium token create NAME --scope admin` makes a token of the API; tokens of the gateway stand in
ANGARIUM_PICKUP__TOKENS. ANGARIUM_ACCESS=open opens both on loopback. Do not delete this file.
"""


class TokensSeen:
    """One for each process and surface."""

    def __init__(self, runtime: Runtime, surface: Surface) -> None:
        self._runtime = runtime
        self._surface = surface
        self._name = runtime.keyspace.name(keys.TOKENS_SEEN, 0)
        self._path = note_path(runtime.settings.home, runtime.settings.prefix, surface)
        self._log = log.logger("angarium.access")
        self._warned = False
        self.ever = False

    async def look(self, *, has_tokens: bool) -> bool:
        """Whether there is a token now, or was one once, here or in another process."""
        self.ever = self.ever or has_tokens or self._path.exists()
        known = await self._runtime.redis.call("HEXISTS", self._name, self._surface, key=self._name)
        self.ever = self.ever or bool(known)
        if self.ever:
            self.write_note()
            if not known:
                await self._runtime.run(REMEMBER_TOKENS, 0, [self._name], [self._surface])
        return self.ever

    def write_note(self) -> None:
        if self._path.exists():
            return
        try:
            _write_whole(self._path, NOTE)
        except OSError as error:
            # The key in Redis remains, and this process remembers as long as it lives.
            if not self._warned:
                self._warned = True
                self._log.warning("tokens_seen_not_written", path=str(self._path), error=str(error))


def note_path(home: Path, prefix: str, surface: Surface) -> Path:
    """A home folder may serve several prefixes; what happens in one concerns no other."""
    part = f"-{hashlib.sha256(prefix.encode()).hexdigest()[:12]}" if prefix else ""
    return home / f"tokens-seen-{surface}{part}"


def _write_whole(path: Path, text: str) -> None:
    """The file is there with all of its text, or not at all."""
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
