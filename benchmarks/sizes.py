"""How long the benchmarks are: `ROUNDS` sets the rounds of all, `SCALE` a factor for counts.

The defaults are meant for a whole run of half an hour on two quiet cores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

SCALE = float(os.environ.get("SCALE") or 1)


def rounds(usual: int) -> int:
    return int(os.environ.get("ROUNDS") or usual)


def count(usual: int, least: int = 1) -> int:
    """So many messages, keys or calls; never more than usual, so that a limit stays one."""
    return max(min(usual, least), int(usual * min(1.0, SCALE)))


def sizes(*usual: int) -> Sequence[int]:
    """The steps of a cost against size; a small scale leaves the largest out."""
    largest = max(usual) * min(1.0, SCALE)
    return tuple(each for each in usual if each <= max(largest, sorted(usual)[1]))


def peers() -> set[str] | None:
    """Whom to compare with, by `PEERS`; None is everybody, and an empty `PEERS` nobody."""
    chosen = os.environ.get("PEERS")
    return None if chosen is None else {each for each in chosen.split(",") if each}
