"""A queue under any interleaving of gateways, takers, acknowledgements, time and crashes.

The model is a list: what arrived, in order, and who has it. Redis and the database together have
to agree with it after every step, whatever was moved, interrupted or came late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from angarium.pickup.model import StoredMessage
from angarium.runtime.scripts import status_of
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock
from tests.pickup.harness import (
    DID,
    GRACE_S,
    LEASE_S,
    OTHER_DID,
    QUEUE,
    SENDING_S,
    THRESHOLD_S,
    PickupHarness,
    harness,
    sqlite,
)

GATEWAYS = st.integers(0, 1)
HELD = float("inf")


class Crash(Exception):
    pass


class Pickup(RuleBasedStateMachine):
    """Two gateways, one queue. `sending` maps an id to the time at which it is pending again."""

    redis_url: str
    database_url: str
    seen: dict[str, int]

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.contexts: list[Any] = []
        self.harnesses: list[PickupHarness] = []
        shared: dict[str, Any] = {}
        for number in range(2):
            context = harness(
                self.redis_url,
                self.database_url,
                clock=self.clock,
                actor=f"g{number}",
                send_at_once=True,
                **shared,
            )
            pickup: PickupHarness = self.do(context.__aenter__())
            shared = {"prefix": pickup.runtime.settings.prefix}
            self.contexts.append(context)
            self.harnesses.append(pickup)
        self.sockets = 0
        self.grace_s = 0.0
        self.order: list[str] = []
        self.dids: dict[str, str] = {}
        self.sending: dict[str, float] = {}
        self.removed: set[str] = set()
        self.session: tuple[int, str] | None = None  # gateway, term
        self.old_terms: list[tuple[int, str]] = []
        # Hypothesis leaves out some rules in each example; without messages most rules do nothing.
        for _ in range(2):
            self._add(0, DID)

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    def now_s(self) -> float:
        return self.clock.monotonic()

    def pending(self, did: str = "") -> list[str]:
        return [
            each
            for each in self.order
            if each not in self.removed
            and each not in self.sending
            and (not did or did in self.dids[each].split())
        ]

    def count(self, what: str) -> None:
        Pickup.seen[what] = Pickup.seen.get(what, 0) + 1

    @rule(
        gateway=GATEWAYS,
        did=st.sampled_from([DID, OTHER_DID, f"{DID} {OTHER_DID}"]),
        count=st.integers(1, 4),
    )
    def add(self, gateway: int, did: str, count: int) -> None:
        for _ in range(count):
            self._add(gateway, did)

    def _add(self, gateway: int, did: str) -> None:
        nothing_before = not self.pending() and not self.in_grace()
        message_id = self.do(self.harnesses[gateway].add(did=did))
        self.order.append(message_id)
        self.dids[message_id] = did
        status = self.harnesses[gateway].status
        if self.session is None:
            assert status == "offline"
        elif self.session[0] != gateway:
            assert status == "elsewhere"
        else:
            assert status == ("sent" if nothing_before else "here")
        if status == "sent":
            self.sending[message_id] = HELD
            self.count("sent at once")

    @rule(gateway=GATEWAYS, limit=st.integers(1, 4), did=st.sampled_from(["", DID, OTHER_DID]))
    def take(self, gateway: int, limit: int, did: str) -> None:
        expected = self.pending(did)[:limit]
        assert self.do(self.harnesses[gateway].take(limit, did=did)) == expected
        for each in expected:
            self.sending[each] = self.now_s() + SENDING_S
            self.count("taken")

    @rule(gateway=GATEWAYS)
    def open(self, gateway: int) -> None:
        self.sockets += 1
        socket = f"k{self.sockets}"
        term = self.do(self.harnesses[gateway].open(session=socket, socket=socket))
        if self.session is not None:
            self._end_session()
            self.count("taken over")
        self.session = (gateway, term)

    @rule(gateway=GATEWAYS)
    def open_and_pull(self, gateway: int) -> None:
        self.open(gateway)
        self.pull()

    @rule()
    def pull(self) -> None:
        if self.session is None:
            return
        gateway, term = self.session
        # An earlier session may still acknowledge, so nothing newer is given.
        expected = [] if self.in_grace() else self.pending()
        assert self.do(self.harnesses[gateway].pull(term)) == expected
        for each in expected:
            self.sending[each] = HELD
            self.count("pulled")

    @rule(which=st.integers(0, 100))
    def pull_under_an_old_term(self, which: int) -> None:
        if not self.old_terms:
            return
        gateway, term = self.old_terms[which % len(self.old_terms)]
        reply = self.do(self.harnesses[gateway].store.pull(QUEUE, term, resend=True))
        assert status_of(reply) == "lost"

    @rule(late=st.booleans())
    def close(self, late: bool) -> None:
        if self.session is None:
            return
        gateway, _ = self.session
        socket = "elsewhere" if late else ""
        store = self.harnesses[gateway].store
        closing = store.sessions.close(QUEUE, gateway=store.gateway, socket=socket)
        if late:
            assert status_of(self.do(_awaited(closing))) == "other"
        else:
            assert status_of(self.do(_awaited(closing))) == "closed"
            self._end_session()

    def _end_session(self) -> None:
        assert self.session is not None
        self.old_terms.append(self.session)
        self.session = None
        due_s = self.now_s() + GRACE_S
        if any(each > due_s for each in self.sending.values()):
            self.grace_s = due_s
        self.sending = {each: min(due, due_s) for each, due in self.sending.items()}

    def in_grace(self) -> bool:
        return any(due <= self.grace_s for due in self.sending.values())

    @rule(gateway=GATEWAYS, choice=st.sets(st.integers(0, 12), max_size=5), twice=st.booleans())
    def acknowledge(self, gateway: int, choice: set[int], twice: bool) -> None:
        """Any message in any state, also removed ones."""
        ids = [self.order[-1 - each] for each in choice if each < len(self.order)]
        fresh = set(ids) - self.removed
        removed = self.do(self.harnesses[gateway].queues.remove(QUEUE, ids))
        assert removed == len(fresh)
        if twice:
            assert self.do(self.harnesses[gateway].queues.remove(QUEUE, ids)) == 0
        self._remove(fresh)

    def _remove(self, ids: set[str]) -> None:
        self.removed |= ids
        for each in ids:
            self.sending.pop(each, None)

    @rule(gateway=GATEWAYS, did=st.sampled_from([DID, OTHER_DID]))
    def remove_all(self, gateway: int, did: str) -> None:
        gone = {
            each
            for each in self.order
            if each not in self.removed and did in self.dids[each].split()
        }
        assert self.do(self.harnesses[gateway].queues.remove_all(QUEUE, did)) == len(gone)
        self._remove(gone)

    @rule(seconds=st.sampled_from([1, GRACE_S + 1, SENDING_S + 1]), gateway=GATEWAYS)
    def time_passes(self, seconds: int, gateway: int) -> None:
        # Both gateways renew their leases; one of them sweeps.
        for _ in range(0, seconds, LEASE_S // 2):
            self.do(self.clock.advance(min(seconds, LEASE_S // 2)))
            for pickup in self.harnesses:
                for partition in pickup.store.partitions:
                    self.do(pickup.store.sessions.renew_gateway(partition))
        self.do(self.harnesses[gateway].sweep())
        now_s = self.now_s()
        self.sending = {each: due for each, due in self.sending.items() if due > now_s}

    @rule(gateway=GATEWAYS)
    def persist(self, gateway: int) -> None:
        moved = self._persist(gateway)
        self.count("moved") if moved else None

    @rule(gateway=GATEWAYS)
    def persist_what_is_old(self, gateway: int) -> None:
        self.time_passes(THRESHOLD_S + 1, gateway)
        self.persist(gateway)

    @rule(gateway=GATEWAYS, step=st.sampled_from(["on_move_begun", "on_rows_stored"]))
    def persist_and_crash(self, gateway: int, step: str) -> None:
        self.time_passes(THRESHOLD_S + 1, gateway)

        async def crash(_: Mapping[str, Sequence[StoredMessage]]) -> None:
            raise Crash

        for persister in self.harnesses[gateway].persisters:
            setattr(persister, step, crash)
        try:
            self._persist(gateway)
        except Crash:
            self.count("crashed")
        for persister in self.harnesses[gateway].persisters:
            delattr(persister, step)

    @rule(gateway=GATEWAYS, choice=st.integers(0, 5))
    def persist_and_acknowledge_in_the_middle(self, gateway: int, choice: int) -> None:
        self.time_passes(THRESHOLD_S + 1, gateway)
        gone: set[str] = set()

        async def acknowledge(found: Mapping[str, Sequence[StoredMessage]]) -> None:
            ids = [each.id for each in found.get(QUEUE, [])][:choice]
            assert await self.harnesses[1 - gateway].queues.remove(QUEUE, ids) == len(ids)
            gone.update(ids)

        for persister in self.harnesses[gateway].persisters:
            persister.on_rows_stored = acknowledge  # type: ignore[method-assign]
        self._persist(gateway)
        for persister in self.harnesses[gateway].persisters:
            del persister.on_rows_stored
        self._remove(gone)
        Pickup.seen["stopped on the way"] = Pickup.seen.get("stopped on the way", 0) + len(gone)

    def _persist(self, gateway: int) -> int:
        """Release the other gateway's lease, as if it had run out."""
        for persister in self.harnesses[1 - gateway].persisters:
            self.do(persister.release())
        return int(self.do(self.harnesses[gateway].persist()))

    @invariant()
    def the_counts_are_those_of_the_model(self) -> None:
        if not getattr(self, "harnesses", None):
            return
        assert self.do(self.harnesses[0].count()) == len(self.pending())
        for did in (DID, OTHER_DID):
            assert self.do(self.harnesses[1].count(did=did)) == len(self.pending(did))

    def teardown(self) -> None:
        if not getattr(self, "contexts", None):
            return
        try:
            self._check_the_end()
        finally:
            for context in self.contexts:
                self.do(context.__aexit__(None, None, None))
            self.loop.close()

    def _check_the_end(self) -> None:
        """Acknowledge all remaining messages: both stores are empty and the events are complete."""
        left = [each for each in self.order if each not in self.removed]
        assert self.do(self.harnesses[0].queues.remove(QUEUE, self.order)) == len(left)
        self._persist(0)
        assert self.do(self.harnesses[0].archive.counts()) == []
        if self.session is not None:
            self.close(False)
        assert self.do(self.harnesses[0].store.queue_status(QUEUE)) is None
        events = self.do(self.harnesses[0].events())
        accepted = [event.subject for event in events if event.event == "accepted"]
        ended = [event.subject for event in events if event.event in ("delivered", "cancelled")]
        assert sorted(accepted) == sorted(ended) == sorted(self.order)


async def _awaited(future: Any) -> Any:
    return await future


@pytest.mark.timeout(600)
def test_both_stores_are_one_exact_queue_under_any_interleaving(
    any_redis_url: str, tmp_path: Path
) -> None:
    Pickup.redis_url = any_redis_url
    Pickup.database_url = sqlite(tmp_path)
    Pickup.seen = {}
    run_state_machine_as_test(
        Pickup,
        settings=settings(max_examples=rounds(8, 200), stateful_step_count=30, deadline=None),
    )
    wanted = ("taken", "pulled", "taken over", "moved", "crashed", "sent at once")
    missing = [each for each in wanted if not Pickup.seen.get(each)]
    assert not missing, (missing, Pickup.seen)
