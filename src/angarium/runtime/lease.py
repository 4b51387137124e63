"""Leases: one holder at a time, and each new holding has a greater term than all before it.

The lock in Redis expires by itself; the term does not. A write under a lease passes its term, and
the script refuses the write if a newer term exists (`lua/include/fence.lua`). So a holder that was
paused for longer than its lease changes nothing when it continues. In the process, a holder counts
the lease from the moment it *began* to ask, minus a margin for clock drift.

The grant is the lease of the archiver and the webhook sender (`lua/include/grant.lua`). It has two
periods: in the first the holder gets work; until the end of the second nobody else does, so that
the holder can finish and report.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from angarium.runtime.errors import LeaseLost
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition


class LeaseWish(NamedTuple):
    holder: str
    lease_ms: int


class LeaseRenewal(NamedTuple):
    holder: str
    term: int
    lease_ms: int


class LeaseEnd(NamedTuple):
    holder: str
    term: int


class LeaseTerm(NamedTuple):
    term: int


class LeaseRefused(NamedTuple):
    holder: str
    left_ms: int


ACQUIRE: Transition[Any] = Transition(
    "angarium.runtime",
    "acquire_lease",
    keys={"lock": None, "term": None},
    args=LeaseWish,
    replies={"acquired": LeaseTerm, "held": LeaseTerm, "refused": LeaseRefused},
)
RENEW: Transition[Any] = Transition(
    "angarium.runtime",
    "renew_lease",
    keys={"lock": None},
    args=LeaseRenewal,
    replies={"renewed": None, "lost": None},
)
RELEASE: Transition[Any] = Transition(
    "angarium.runtime",
    "release_lease",
    keys={"lock": None},
    args=LeaseEnd,
    replies={"released": None, "lost": None},
)

# Two monotonic clocks drift by far less than this part of a lease. It also covers the time between
# reading `trusted` and sending the write.
MARGIN_PART = 0.1
# Two renewals in a row may be lost; the third still arrives before the lease expires.
RENEWALS_PER_LEASE = 3


@dataclass(frozen=True)
class LeaseKeys:
    """The names of one lease in Redis, all in the same partition."""

    partition: int
    lock: str
    term: str


class LeaseOutcome(StrEnum):
    GAINED = "gained"
    RENEWED = "renewed"
    LOST = "lost"
    WAITING = "waiting"


class Lease:
    """One process's view of one lease. Call `run_once`, wait `pause_s`, and repeat."""

    def __init__(self, runtime: Runtime, keys: LeaseKeys, lease_ms: int) -> None:
        self._runtime = runtime
        self._keys = keys
        self._lease_ms = lease_ms
        # Two leases in one process are two holders, so the holder's name is random.
        self._holder = f"{runtime.actor}/{secrets.token_hex(3)}"
        self._term: int | None = None
        self._trusted_until = float("-inf")
        self._retry_ms = 0.0

    @property
    def trusted(self) -> bool:
        """Whether this process has the lease and no other can have it yet."""
        return self._term is not None and self._runtime.clock.monotonic() < self._trusted_until

    @property
    def term(self) -> int:
        """The term to pass with every write under this lease. Raises LeaseLost."""
        if self._term is None or not self.trusted:
            raise LeaseLost(f"this process does not hold the lease {self._keys.lock}")
        return self._term

    async def acquire(self) -> bool:
        """Take the lease if it is free, or extend it if this process has it."""
        began = self._runtime.clock.monotonic()
        names, wish = [self._keys.lock, self._keys.term], LeaseWish(self._holder, self._lease_ms)
        reply = await self._run(ACQUIRE, names, wish)
        if isinstance(reply, LeaseRefused):
            self._forget()
            self._retry_ms = max(0.0, float(reply.left_ms))
            return False
        self._term = reply.term
        self._trust_from(began)
        return True

    async def renew(self) -> bool:
        """Extend this term. False: the lease has expired, and another may have it."""
        if self._term is None:
            return False
        began = self._runtime.clock.monotonic()
        renewal = LeaseRenewal(self._holder, self._term, self._lease_ms)
        if await self._run(RENEW, [self._keys.lock], renewal) == "lost":
            self._forget()
            return False
        self._trust_from(began)
        return True

    async def release(self) -> None:
        """Give the lease back, so that the next holder does not wait for its expiry."""
        if self._term is None:
            return
        term = self._term
        self._forget()
        await self._run(RELEASE, [self._keys.lock], LeaseEnd(self._holder, term))

    async def run_once(self) -> LeaseOutcome:
        """Renew the lease if this process has it, else try to acquire it."""
        if self._term is not None:
            return LeaseOutcome.RENEWED if await self.renew() else LeaseOutcome.LOST
        return LeaseOutcome.GAINED if await self.acquire() else LeaseOutcome.WAITING

    @property
    def pause_s(self) -> float:
        """Seconds until the next `run_once`. A waiting process asks just after the lock expires."""
        interval_ms = self._lease_ms / RENEWALS_PER_LEASE
        if self._term is None and 0 < self._retry_ms < interval_ms:
            return (self._retry_ms + random.uniform(1.0, 10.0)) / 1000
        return interval_ms * random.uniform(0.8, 1.0) / 1000

    async def _run(
        self, transition: Transition[Any], names: list[str], args: tuple[Any, ...]
    ) -> Any:
        # Not durable: a lease lasts seconds, and waiting for the disk would shorten it. Terms are
        # stored with the rest of the data.
        partition = self._keys.partition
        return await self._runtime.call(transition, partition, args, names=names, durable=False)

    def _trust_from(self, began: float) -> None:
        self._trusted_until = began + self._lease_ms / 1000 * (1 - MARGIN_PART)

    def _forget(self) -> None:
        self._term = None
        self._trusted_until = float("-inf")


class GrantStatus(StrEnum):
    GRANTED = "granted"
    WORKING = "working"
    GRACE = "grace"
    REFUSED = "refused"
