"""Leases: one holder at a time, each holding with a term greater than every one before.

The lock in Redis expires by itself; the term does not. A write made under a lease passes its
term, and the script refuses it when a newer term exists (`lua/include/fence.lua`): a holder
that was paused past its lease can do no harm when it wakes. In the process, a holder trusts
its lease only from the moment it *began* to ask, less a margin for clocks that run unevenly.

The grant is the lease of archiver and webhook sender: a window in which the holder gets work,
and a longer one in which nobody else does, so that it can finish and report.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from angarium.redis.scripts import Script
from angarium.runtime.errors import LeaseLost
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

ACQUIRE = load_script("angarium.runtime", "acquire_lease")
RENEW = load_script("angarium.runtime", "renew_lease")
RELEASE = load_script("angarium.runtime", "release_lease")
ASK_GRANT = load_script("angarium.runtime", "ask_grant")

# Two monotonic clocks drift by far less than this part of a lease; it also covers the time
# between looking at `trusted` and sending the write.
MARGIN_PART = 0.1
# Renewals per lease: two may be lost on the way before the third would come too late.
TURNS_PER_LEASE = 3


@dataclass(frozen=True)
class LeaseKeys:
    """The names of one lease in Redis, all in the same partition."""

    partition: int
    lock: str
    term: str


class Turn(StrEnum):
    GAINED = "gained"
    KEPT = "kept"
    LOST = "lost"
    WAITING = "waiting"


class Lease:
    """One process' view of one lease. `run_once` at each `pause_s` keeps it, or waits for it."""

    def __init__(self, runtime: Runtime, keys: LeaseKeys, lease_ms: int) -> None:
        self._runtime = runtime
        self._keys = keys
        self._lease_ms = lease_ms
        # Two of one process are two holders: the lock must keep them apart as well.
        self._holder = f"{runtime.actor}/{secrets.token_hex(3)}"
        self._term: int | None = None
        self._trusted_until = float("-inf")
        self._retry_ms = 0.0

    @property
    def trusted(self) -> bool:
        """We hold it, and no other can have it yet."""
        return self._term is not None and self._runtime.clock.monotonic() < self._trusted_until

    @property
    def term(self) -> int:
        """The fencing number to pass with every write made under this lease."""
        if self._term is None or not self.trusted:
            raise LeaseLost(f"the lease {self._keys.lock} is not ours, or no longer surely so")
        return self._term

    async def acquire(self) -> bool:
        """Take it if it is free (or still ours)."""
        began = self._runtime.clock.monotonic()
        reply = await self._run(
            ACQUIRE, [self._keys.lock, self._keys.term], [self._holder, self._lease_ms]
        )
        if status_of(reply) == "refused":
            self._forget()
            self._retry_ms = max(0.0, float(reply[3]))
            return False
        self._term = int(reply[1])
        self._trust_from(began)
        return True

    async def renew(self) -> bool:
        """Prolong exactly this term. False: it expired, and another may have it."""
        if self._term is None:
            return False
        began = self._runtime.clock.monotonic()
        reply = await self._run(
            RENEW, [self._keys.lock], [self._holder, self._term, self._lease_ms]
        )
        if status_of(reply) == "lost":
            self._forget()
            return False
        self._trust_from(began)
        return True

    async def release(self) -> None:
        """Give it back at once, so that the next holder need not wait for the expiry."""
        if self._term is None:
            return
        term = self._term
        self._forget()
        await self._run(RELEASE, [self._keys.lock], [self._holder, term])

    async def run_once(self) -> Turn:
        """One turn: renew what we hold, else try to get it."""
        if self._term is not None:
            return Turn.KEPT if await self.renew() else Turn.LOST
        return Turn.GAINED if await self.acquire() else Turn.WAITING

    @property
    def pause_s(self) -> float:
        """Until the next turn. One who waits comes back just after the lock would expire."""
        turn_ms = self._lease_ms / TURNS_PER_LEASE
        if self._term is None and 0 < self._retry_ms < turn_ms:
            return (self._retry_ms + random.uniform(1.0, 10.0)) / 1000
        return turn_ms * random.uniform(0.8, 1.0) / 1000

    async def _run(self, script: Script, keys: list[str], args: list[str | int]) -> Any:
        # Not durable on purpose: a lease lives in seconds, and a lock that waits for the disk
        # is older when it arrives. Terms survive with the rest of the data.
        return await self._runtime.run(script, self._keys.partition, keys, args, durable=False)

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

    @property
    def may_ask_for_work(self) -> bool:
        return self in (GrantStatus.GRANTED, GrantStatus.WORKING)


@dataclass(frozen=True)
class GrantKeys:
    partition: int
    work: str
    grace: str


async def ask_grant(runtime: Runtime, keys: GrantKeys, work_ms: int, grace_ms: int) -> GrantStatus:
    """Ask for the two-window role; scripts that also hand out work include grant.lua instead."""
    if grace_ms <= work_ms:
        raise ValueError(f"the grace period {grace_ms} ms must be longer than {work_ms} ms")
    reply = await runtime.run(
        ASK_GRANT,
        keys.partition,
        [keys.work, keys.grace],
        [runtime.actor, work_ms, grace_ms],
        durable=False,
    )
    return GrantStatus(status_of(reply))
