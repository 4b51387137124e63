"""Exponential back-off with full jitter.

Full jitter (a uniform draw between 0 and the ceiling) spreads a thousand clients that lost
the same server over the whole interval; adding a little noise to a fixed delay does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Delays for one run of attempts; `reset` after a success."""

    base_s: float = 0.05
    ceiling_s: float = 2.0
    factor: float = 2.0
    draw: Callable[[float, float], float] = random.uniform
    attempt: int = 0

    def next_delay_s(self) -> float:
        # The exponent is capped so that a week of failures does not overflow a float.
        ceiling = min(self.ceiling_s, self.base_s * self.factor ** min(self.attempt, 64))
        self.attempt += 1
        return self.draw(0.0, ceiling)

    def reset(self) -> None:
        self.attempt = 0
