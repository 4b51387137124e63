"""How a user's function is tried again after a failure: how often, when, and for which errors.

The number of tries is stored with the work in Redis, so it holds across processes and crashes; this
file only decides what follows from it. `retries` left out means the module's setting.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

BackoffKind = Literal["exponential", "linear", "fixed"]
ErrorTypes = type[Exception] | tuple[type[Exception], ...]
# Doubling for ever would overflow a float.
EXPONENT_MAX = 62


class DoNotRetry(Exception):
    """Raised by a user's function: trying again can't help, so this try is the last."""


@dataclass(frozen=True)
class RetryPolicy:
    retries: int | None = None
    """Tries after the first; None means as many as the module's setting allows."""
    backoff: BackoffKind = "exponential"
    delay_s: float = 1.0
    """The delay before the first retry."""
    delay_s_max: float = 300.0
    retry_on: ErrorTypes = Exception
    timeout_s: float | None = None
    """The time that one try may take; None means the module's setting."""

    def __post_init__(self) -> None:
        if self.retries is not None and not 0 <= self.retries <= 1_000_000:
            raise ValueError("retries must be a whole number of 0 or more")
        if self.backoff not in ("exponential", "linear", "fixed"):
            raise ValueError("backoff must be 'exponential', 'linear' or 'fixed'")
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise ValueError("timeout_s must be a number of seconds above 0")
        if not 0 <= self.delay_s <= self.delay_s_max < math.inf:
            raise ValueError("delay_s must be at least 0 and at most delay_s_max")
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(each, type) and issubclass(each, Exception) for each in kinds):
            raise TypeError("retry_on takes exception classes")

    def retries_error(self, error: BaseException) -> bool:
        """Whether this error allows another try, however many are left."""
        return isinstance(error, self.retry_on) and not isinstance(error, DoNotRetry)

    def next_delay_s(
        self, failures: int, draw: Callable[[float, float], float] = random.uniform
    ) -> float:
        """The delay after `failures` failed tries: at least half of the full delay, at random, so
        that work that failed together is not tried together."""
        factor = {
            "exponential": 2.0 ** min(failures - 1, EXPONENT_MAX),
            "linear": float(failures),
            "fixed": 1.0,
        }[self.backoff]
        full = min(self.delay_s * factor, self.delay_s_max)
        return draw(full / 2, full)


DEFAULT_POLICY = RetryPolicy()
