"""Leases under any interleaving of several processes, expiries, pauses and lost replies."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from angarium.runtime.errors import LeaseLost
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock
from tests.kit.sample import SampleStore, sample_runtime
from tests.kit.server import ServerProcess

PROCESSES = st.integers(0, 2)
LEASE_MS = 3_600_000  # real expiry never comes; the rule `expire` makes it happen


async def _store_on(runtime: Runtime) -> SampleStore:
    """Inside the loop, where its batcher belongs."""
    return SampleStore(runtime)


class Leases(RuleBasedStateMachine):
    """Three processes and one lease. The model: which terms exist, and what was written."""

    server: ServerProcess
    late_writes = 0

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.contexts: list[Any] = []
        self.leases: list[Lease] = []
        self.clocks = [FakeClock() for _ in range(3)]
        prefix: dict[str, Any] = {}
        for number, clock in enumerate(self.clocks):
            context = sample_runtime(self.server.url, actor=f"p{number}", clock=clock, **prefix)
            runtime: Runtime = self.loop.run_until_complete(context.__aenter__())
            self.contexts.append(context)
            prefix = {"prefix": runtime.settings.prefix}
            self.store = self.do(_store_on(runtime))
            self.leases.append(Lease(runtime, self.store.lease_keys, LEASE_MS))
        self.holders: dict[int, int] = {}
        self.written: list[str] = []

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    @rule(process=PROCESSES)
    def acquire(self, process: int) -> None:
        if self.do(self.leases[process].acquire()):
            term = self.leases[process].term
            # A term belongs to one process for ever.
            assert self.holders.setdefault(term, process) == process

    @rule(process=PROCESSES)
    def turn(self, process: int) -> None:
        self.do(self.leases[process].run_once())
        lease = self.leases[process]
        if lease.trusted:
            assert self.holders.setdefault(lease.term, process) == process

    @rule(process=PROCESSES)
    def release(self, process: int) -> None:
        self.do(self.leases[process].release())

    @rule()
    def expire(self) -> None:
        """The lock's time is over in Redis, and with it the trust of whoever held it."""
        lock = self.store.lease_keys.lock
        self.do(self.store.runtime.redis.call("DEL", lock))
        for clock in self.clocks:
            self.do(clock.advance(LEASE_MS / 1000))

    @rule(process=PROCESSES)
    def take_over(self, process: int) -> None:
        self.expire()
        self.acquire(process)

    @rule(which=st.integers(0, 1_000))
    def write_under_a_term_once_held(self, which: int) -> None:
        """A process that was paused at any time wakes and writes without looking at its clock."""
        if not self.holders:
            return
        newest = max(self.holders)
        term = sorted(self.holders)[which % len(self.holders)]
        value = f"{term}:{len(self.written)}"
        status = self.do(self.store.append_fenced(term, value))
        assert status == ("appended" if term == newest else "stale_term")
        if status == "appended":
            self.written.append(value)
        else:
            Leases.late_writes += 1

    @invariant()
    def at_most_one_process_trusts_its_lease(self) -> None:
        trusting = []
        for number, lease in enumerate(getattr(self, "leases", [])):
            try:
                trusting.append((number, lease.term))
            except LeaseLost:
                continue
        assert len(trusting) <= 1, trusting

    @invariant()
    def terms_of_what_was_written_never_go_back(self) -> None:
        terms = [int(value.partition(":")[0]) for value in getattr(self, "written", [])]
        assert terms == sorted(terms)

    def teardown(self) -> None:
        if not hasattr(self, "contexts"):
            return
        assert self.do(self.store.order(0)) == self.written
        for context in self.contexts:
            self.do(context.__aexit__(None, None, None))
        self.loop.close()


def test_any_interleaving_keeps_one_holder_and_growing_terms(redis_server: ServerProcess) -> None:
    Leases.server = redis_server
    Leases.late_writes = 0
    run_state_machine_as_test(
        Leases,
        settings=settings(max_examples=rounds(30, 300), stateful_step_count=40, deadline=None),
    )
    assert Leases.late_writes > 10, "the runs were too tame to show anything"
