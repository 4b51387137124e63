"""A Lua script, called by the hash of its text.

Redis never sees a script's name, only the hash, so an old and a new version run side by side
during a rolling deployment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from angarium.redis.connection import Argument, Command


@dataclass(frozen=True)
class Script:
    """`repeatable`: running it twice does what running it once does."""

    name: str
    source: str
    sha: str
    repeatable: bool
    writes: bool

    def evalsha(self, keys: Sequence[str], args: Sequence[Argument]) -> Command:
        return ("EVALSHA", self.sha, str(len(keys)), *keys, *args)

    def eval(self, keys: Sequence[str], args: Sequence[Argument]) -> Command:
        """Loads and runs in one step, so that no flush can come between."""
        return ("EVAL", self.source, str(len(keys)), *keys, *args)
