"""Where one Redis server listens."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
