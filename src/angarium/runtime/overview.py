"""What a module shows in the overview: waiting work, its metrics, and notices for operators.

Each module's manifest names a class like `ModuleSampler`. The dashboard and `angarium top` take a
sample of every module and add nothing of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal, Protocol

import msgspec

from angarium.runtime.runtime import Runtime


class Notice(msgspec.Struct, frozen=True):
    """`hint` is the next action for the operator, `page` where the dashboard offers it; without
    one it is the module's page."""

    module: str
    level: Literal["warning", "trouble"]
    text: str
    hint: str
    page: str = ""


class ModuleSample(msgspec.Struct, frozen=True):
    """`waiting` counts unfinished work; `oldest_ms` is the age of the oldest."""

    waiting: int
    facts: Mapping[str, int]
    oldest_ms: int | None = None
    dead: int = 0
    notices: Sequence[Notice] = ()


class ModuleSampler(Protocol):
    def __init__(self, runtime: Runtime) -> None: ...

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        """Changes nothing. `roles` are those for which a process runs."""
        ...
