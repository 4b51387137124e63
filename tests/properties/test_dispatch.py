"""The lifecycle of messages under any order of events, against the real scripts.

Two leaders alternate without knowing it, two workers complete, reject and repeat, replies get
lost, time passes. A model computes the effect of each transition. After every step it is compared
with the state in Redis, and at the end with the journal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.dispatch.harness import ACK_TIMEOUT_MS, StoreHarness, store_harness
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock

DELIVERIES_MAX = 3
PAGES_MAX = 4
PENDING_MAX = 4
PAYLOAD_MAX = 20
SILENCE = f"no acknowledgement within {ACK_TIMEOUT_MS} ms"
TOO_LARGE = "too large, limits.frame_bytes_max is exceeded"
FULL = "dropped, dispatch.pending_messages_max is full"

# One of the two leaders, which may have an old term; None is the current leader.
LEADERS = st.sampled_from([None, None, None, 0, 1])
WORKERS = st.sampled_from(["w1", "w2"])
PAYLOADS = st.lists(
    st.sampled_from([b"same", b"same", b"other", b"other", b"x" * (PAYLOAD_MAX + 1)]),
    min_size=1,
    max_size=4,
)
PICKS = st.lists(st.integers(0, 1_000), min_size=1, max_size=4)
PICK = st.integers(0, 1_000)
NOBODY = b"ffffffff-0000-4000-8000-000000000000"


@dataclass
class Message:
    payload: bytes
    state: str = "new"  # pending, processed, acknowledged, dead, discarded, refused
    score: int = 0
    record: tuple[int, tuple[str, ...]] | None = None
    """Deliveries and failures; None for one delivery without a failure."""
    holder: str = ""
    """The worker that renewed the message last."""
    events: list[str] = field(default_factory=list)

    @property
    def attempts(self) -> tuple[int, tuple[str, ...]]:
        return self.record or (1, ())

    @property
    def written(self) -> bytes | None:
        if self.record is None and not self.holder:
            return None
        deliveries, reasons = self.attempts
        holder = self.holder and f"@{self.holder}"
        return "\n".join([f"{deliveries}{holder}", *reasons]).encode()

    @property
    def is_held(self) -> bool:
        return len(self.attempts[1]) < self.attempts[0]

    def is_held_by(self, worker: str, delivery: int) -> bool:
        if not self.is_held:
            return False
        return delivery == self.attempts[0] if delivery else self.holder in ("", worker)


class Lifecycle(RuleBasedStateMachine):
    url: str
    policy: str
    terms: list[int]
    seen: Counter[str]

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.context = store_harness(
            self.url,
            clock=self.clock,
            limits={"frame_bytes_max": 37 + PAYLOAD_MAX},
            dispatch={
                "deliveries_max": DELIVERIES_MAX,
                "pending_messages_max": PENDING_MAX,
                "pending_full": self.policy,
                "ack_timeout_ms": ACK_TIMEOUT_MS,
            },
        )
        self.harness: StoreHarness = self.do(self.context.__aenter__())
        self.terms = [self.harness.term, 0]
        self.ids = 0
        self.messages: dict[bytes, Message] = {}
        self.results: list[bytes] = []
        self.dead: list[bytes] = []
        self.inbox: list[tuple[bytes, bytes]] = []

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    # The model ----------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def term_of(self, leader: int | None) -> int:
        return max(self.terms) if leader is None else self.terms[leader]

    def leads(self, leader: int | None) -> bool:
        current = self.term_of(leader) == max(self.terms)
        Lifecycle.seen["stale"] += not current
        return current

    def pending(self) -> list[bytes]:
        """Pending ids in the order in which they are due."""
        found = [each for each, message in self.messages.items() if message.state == "pending"]
        return sorted(found, key=lambda each: (self.messages[each].score, each))

    def enter(self, message_id: bytes, payload: bytes, sent: bool, event: str) -> None:
        message = self.messages.setdefault(message_id, Message(payload))
        message.state = "pending"
        message.score = self.now if sent else self.now - ACK_TIMEOUT_MS
        message.record = None if sent else (0, ())
        message.events.append(event)

    def leave(self, message_id: bytes, state: str, event: str) -> None:
        message = self.messages[message_id]
        assert message.state == "pending"
        message.state = state
        message.events.append(event)
        Lifecycle.seen[event] += 1

    def make_dead(self, message_id: bytes, event: str, reason: str) -> None:
        message = self.messages[message_id]
        count, reasons = message.attempts
        message.record = (count, (*reasons, *([reason] if reason else [])))
        message.holder = ""
        self.leave(message_id, "dead", event)
        self.dead.append(message_id)

    def next_id(self) -> bytes:
        """Ids count up, so that a failure replays: equally due messages are sorted by id."""
        self.ids += 1
        last = self.ids * self.harness.store.partitions + self.harness.partition
        return b"%08x-0000-4000-8000-00000000%04x" % (self.ids, last)

    def known(self, picks: list[int]) -> list[bytes]:
        """Ids of messages in any state, most often pending, and one unknown id."""
        ids = [*self.pending(), *self.messages, NOBODY]
        return [ids[pick % len(ids)] for pick in picks]

    # Leaders ------------------------------------------------------------------------------

    @rule(leader=st.integers(0, 1))
    def take_over(self, leader: int) -> None:
        self.terms[leader] = self.do(self.harness.take_over())

    @rule(leader=LEADERS, payloads=PAYLOADS, sent=st.integers(0, 3), lost=st.booleans())
    def accept(self, leader: int | None, payloads: list[bytes], sent: int, lost: bool) -> None:
        batch = [(self.next_id(), payload) for payload in payloads]
        term = self.term_of(leader)
        reply = self.do(self.harness.accept(batch, term=term, sent=sent))
        if not self.leads(leader):
            assert reply is None
            return
        accepted = len(batch)
        if self.policy == "refuse_new":
            accepted = max(0, min(accepted, PENDING_MAX - len(self.pending())))
        assert reply == accepted
        for number, (message_id, payload) in enumerate(batch):
            if number < accepted:
                self.enter(message_id, payload, number < sent, "accepted")
            else:
                self.messages[message_id] = Message(payload, "refused", events=["refused"])
                Lifecycle.seen["refused"] += 1
        for message_id, payload in batch[:accepted]:
            if len(payload) > PAYLOAD_MAX:
                self.make_dead(message_id, "dead", TOO_LARGE)
        if self.policy == "drop_oldest":
            for message_id in self.pending()[: max(0, len(self.pending()) - PENDING_MAX)]:
                self.make_dead(message_id, "dropped", FULL)
        if lost:
            assert self.do(self.harness.accept(batch, term=term, sent=sent)) == len(batch)

    @rule(
        leader=LEADERS,
        count=st.integers(1, 5),
        held_too=st.booleans(),
        suspects_max=st.sampled_from([0, 0, 1, 25]),
    )
    def claim(self, leader: int | None, count: int, held_too: bool, suspects_max: int) -> None:
        store, partition = self.harness.store, self.harness.partition
        claim = self.do(
            store.claim(
                partition,
                self.term_of(leader),
                count,
                held_too=held_too,
                suspects_max=suspects_max,
            )
        )
        if not self.leads(leader):
            assert claim is None
            return
        limit = self.now - ACK_TIMEOUT_MS
        expected: list[tuple[bytes, bytes, int]] = []
        dead = skipped = suspects = 0
        full = False
        for _ in range(PAGES_MAX):
            all_due = [each for each in self.pending() if self.messages[each].score <= limit]
            due = all_due[skipped : skipped + count]
            full = full or len(due) == count
            for message_id in due:
                found = self.claim_one(message_id, held_too, suspects_max, len(expected))
                dead += found == "dead"
                suspects += found in ("suspect", "sent suspect")
                skipped += found in ("held", "suspect", "other")
                if found in ("sent", "sent suspect"):
                    message = self.messages[message_id]
                    expected.append((message_id, message.payload, message.attempts[0]))
            if expected or not skipped or len(due) < count:
                break
        assert claim.messages == expected
        assert claim.dead == dead
        assert claim.suspects == suspects
        assert claim.full == (full and len(expected) + dead > 0)
        for message_id, _, _ in expected:
            self.messages[message_id].score = self.now

    def claim_one(self, message_id: bytes, held_too: bool, suspects_max: int, sent: int) -> str:
        """What the claim does with one due message."""
        message = self.messages[message_id]
        deliveries, reasons = message.attempts
        if message.is_held:
            if not held_too:
                return "held"
            silence = f"{message.holder}: no renewal within {ACK_TIMEOUT_MS} ms"
            reasons = (*reasons, silence if message.holder else SILENCE)
        fits = len(message.payload) <= PAYLOAD_MAX
        if not fits:
            reasons = (*reasons, TOO_LARGE)
        if deliveries >= DELIVERIES_MAX or not fits:
            message.holder, message.record = "", (deliveries, reasons)
            self.make_dead(message_id, "dead", "")
            return "dead"
        # With three deliveries, one death of a worker is enough: the last delivery is alone.
        is_suspect = any("no renewal" in each for each in reasons)
        if is_suspect != (suspects_max > 0) or (is_suspect and sent):
            return "suspect" if is_suspect else "other"
        deliveries += 1
        message.holder = ""
        message.record = (deliveries, reasons) if deliveries > 1 or reasons else None
        if deliveries > 1:
            message.events.append("redelivered")
            Lifecycle.seen["redelivered"] += 1
        Lifecycle.seen["alone"] += is_suspect
        return "sent suspect" if is_suspect else "sent"

    @rule(times=st.integers(1, DELIVERIES_MAX + 1))
    def silence(self, times: int) -> None:
        """Several deliveries in a row time out."""
        for _ in range(times):
            self.time_passes(ACK_TIMEOUT_MS)
            self.claim(None, PENDING_MAX, True, 0)

    @rule(worker=WORKERS, picks=PICKS, suspects_max=st.sampled_from([0, 1, 25]))
    def deaths(self, worker: str, picks: list[int], suspects_max: int) -> None:
        """A worker renews what it has and dies; its messages are claimed apart from the others."""
        self.claim(None, PENDING_MAX, True, 0)
        self.renew(worker, picks, 0)
        self.time_passes(ACK_TIMEOUT_MS)
        self.claim(None, PENDING_MAX, True, suspects_max)

    @rule(leader=LEADERS, picks=PICKS)
    def return_unsent(self, leader: int | None, picks: list[int]) -> None:
        ids = list(dict.fromkeys(self.known(picks)))
        store, partition = self.harness.store, self.harness.partition
        returned = self.do(store.return_unsent(partition, self.term_of(leader), ids))
        assert returned == self.leads(leader)
        for message_id in ids if returned else ():
            message = self.messages.get(message_id)
            if message is not None and message.state == "pending":
                self.give_back(message)

    def give_back(self, message: Message) -> None:
        deliveries, reasons = message.attempts
        message.record, message.holder = (max(0, deliveries - 1), reasons), ""
        message.score = self.now - ACK_TIMEOUT_MS
        message.events.append("returned")

    @rule(payload=st.sampled_from([b"same", b"x" * (PAYLOAD_MAX + 1)]))
    def add_to_inbox(self, payload: bytes) -> None:
        message_id = self.next_id()
        self.do(self.harness.add_to_inbox("message_id", message_id, "anything", payload))
        self.inbox.append((message_id, payload))

    @rule(leader=LEADERS, count=st.integers(1, 4), sent=st.integers(0, 3))
    def accept_inbox(self, leader: int | None, count: int, sent: int) -> None:
        store, partition = self.harness.store, self.harness.partition
        taken = self.do(store.accept_inbox(partition, self.term_of(leader), count, sent))
        if not self.leads(leader):
            assert taken is None
            return
        count = max(0, min(count, PENDING_MAX - len(self.pending())))
        due, self.inbox = self.inbox[:count], self.inbox[count:]
        assert taken.messages == due
        for number, (message_id, payload) in enumerate(taken.messages):
            assert message_id not in self.messages
            self.enter(message_id, payload, number < sent, "accepted")
            if len(payload) > PAYLOAD_MAX:
                self.make_dead(message_id, "dead", TOO_LARGE)

    # Workers ------------------------------------------------------------------------------

    @rule(worker=WORKERS, picks=PICKS, ours=st.booleans(), lost=st.booleans())
    def finish(self, worker: str, picks: list[int], ours: bool, lost: bool) -> None:
        """Our worker stores the result; a third-party worker has stored it and acknowledges."""
        ids = self.known(picks)
        (self.complete if ours else self.acknowledge)(worker, ids)
        if lost:
            (self.complete if ours else self.acknowledge)(worker, ids)

    def complete(self, worker: str, ids: list[bytes]) -> None:
        replies = self.do(self.harness.complete(*ids, consumer=worker))
        for message_id, completed in zip(ids, replies, strict=True):
            message = self.messages.get(message_id)
            assert completed == (message is not None and message.state == "pending")
            if completed:
                self.leave(message_id, "processed", "completed")
                self.results.append(message_id)
            else:
                Lifecycle.seen["duplicate"] += 1

    def acknowledge(self, worker: str, ids: list[bytes]) -> None:
        replies = self.do(self.harness.acknowledge(*ids, consumer=worker))
        for message_id, acknowledged in zip(ids, replies, strict=True):
            message = self.messages.get(message_id)
            assert acknowledged == (message is not None and message.state == "pending")
            if acknowledged:
                self.leave(message_id, "acknowledged", "acknowledged")

    @rule(worker=WORKERS, picks=PICKS, delivery=st.integers(0, 2))
    def renew(self, worker: str, picks: list[int], delivery: int) -> None:
        ids = list(dict.fromkeys(self.known(picks)))
        replies = self.do(self.harness.renew(*ids, consumer=worker, delivery=delivery))
        for message_id, reply in zip(ids, replies, strict=True):
            message = self.messages.get(message_id)
            if message is None or message.state != "pending":
                assert reply == "unknown"
            elif message.is_held_by(worker, delivery):
                assert reply == "renewed"
                message.score, message.holder = self.now, worker
            else:
                assert reply == "lost"
            Lifecycle.seen[reply] += 1

    @rule(
        worker=WORKERS,
        pick=PICK,
        given_back=st.booleans(),
        delay_ms=st.integers(0, 3_000),
        delivery=st.integers(0, 2),
        last=st.booleans(),
    )
    def reject(
        self, worker: str, pick: int, given_back: bool, delay_ms: int, delivery: int, last: bool
    ) -> None:
        (message_id,) = self.known([pick])
        reason = "" if given_back else f"{worker}: no"
        status = self.do(
            self.harness.reject(
                message_id, reason, delay_ms, consumer=worker, delivery=delivery, last=last
            )
        )
        message = self.messages.get(message_id)
        if message is None or message.state != "pending":
            assert status == "unknown"
            return
        if not message.is_held_by(worker, delivery):
            assert status == "lost"
            return
        deliveries, reasons = message.attempts
        if given_back:
            self.give_back(message)
        else:
            message.record, message.holder = (deliveries, (*reasons, reason)), ""
            message.events.append("rejected")
            if last or deliveries >= DELIVERIES_MAX:
                self.make_dead(message_id, "dead", "")
                assert status == "dead"
                return
            wait_ms = min(ACK_TIMEOUT_MS, delay_ms * 2 ** max(0, deliveries - 1))
            message.score = self.now - ACK_TIMEOUT_MS + wait_ms
        assert status == "requeued"

    @rule(ms=st.sampled_from([1, 100, 500, ACK_TIMEOUT_MS, 10 * ACK_TIMEOUT_MS]))
    def time_passes(self, ms: int) -> None:
        self.do(self.clock.advance(ms / 1000))

    # Operators ----------------------------------------------------------------------------

    def pick_dead_letter(self, pick: int) -> tuple[bytes, str]:
        found = self.do(self.harness.store.dead_letters(self.harness.partition, 1_000))
        assert [each.message_id.encode() for each in found] == self.dead
        for each in found:
            message = self.messages[each.message_id.encode()]
            assert (each.deliveries, tuple(each.reasons)) == message.record
            assert each.payload == message.payload
        chosen = found[pick % len(found)]
        return chosen.message_id.encode(), chosen.entry_id

    @precondition(lambda self: self.dead)
    @rule(pick=PICK, again=st.booleans())
    def look_after(self, pick: int, again: bool) -> None:
        (self.retry if again else self.drop)(*self.pick_dead_letter(pick))

    def retry(self, message_id: bytes, entry_id: str) -> None:
        store, partition = self.harness.store, self.harness.partition
        twice = [entry_id, entry_id]
        assert self.do(store.retry_dead_letters(partition, twice)) == ["retried", "unknown"]
        self.dead.remove(message_id)
        self.enter(message_id, b"", False, "retried")
        Lifecycle.seen["retried"] += 1

    def drop(self, message_id: bytes, entry_id: str) -> None:
        store, partition = self.harness.store, self.harness.partition
        assert self.do(store.drop_dead_letters(partition, [entry_id])) == ["discarded"]
        assert self.do(store.retry_dead_letters(partition, [entry_id])) == ["unknown"]
        self.dead.remove(message_id)
        self.messages[message_id].state = "discarded"
        self.messages[message_id].events.append("discarded")

    # Invariants ---------------------------------------------------------------------------

    @invariant()
    def redis_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "harness"):
            return
        held = self.do(self.harness.state())
        pending = {each: self.messages[each] for each in self.pending()}
        assert held.pending == {each: message.score for each, message in pending.items()}
        assert held.payloads == {each: message.payload for each, message in pending.items()}
        written = {each: message.written for each, message in pending.items()}
        assert held.attempts == {each: text for each, text in written.items() if text is not None}
        assert [each[b"message_id"] for each in held.results] == self.results
        assert [each[b"message_id"] for each in held.dead] == self.dead
        assert [(each[b"message_id"], each[b"anything"]) for each in held.inbox] == self.inbox

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        if not hasattr(self, "harness"):
            return
        places = Counter([*self.pending(), *self.results, *self.dead])
        assert not places or max(places.values()) == 1

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        try:
            self.check_journal()
        finally:
            self.do(self.context.__aexit__(None, None, None))
            self.loop.close()

    def check_journal(self) -> None:
        events: dict[bytes, list[str]] = {}
        for event in self.do(self.harness.events()):
            events.setdefault(event.subject.encode(), []).append(event.event)
        assert events == {each: message.events for each, message in self.messages.items()}
        for message in self.messages.values():
            self.check_account(message)

    def check_account(self, message: Message) -> None:
        """One event begins a message and one ends it; a retry begins it again."""
        counts = Counter(message.events)
        assert counts["accepted"] + counts["refused"] == 1
        ends = sum(counts[each] for each in ("completed", "acknowledged", "dead", "dropped"))
        is_open = message.state == "pending"
        assert counts["accepted"] + counts["retried"] == ends + is_open


@pytest.mark.parametrize("policy", ["refuse_new", "drop_oldest"])
def test_any_order_of_events_leaves_each_message_in_one_place(
    any_redis_url: str, policy: str
) -> None:
    Lifecycle.url, Lifecycle.policy, Lifecycle.seen = any_redis_url, policy, Counter()
    single = "+cluster" not in any_redis_url
    run_state_machine_as_test(
        Lifecycle,
        settings=settings(
            max_examples=rounds(110 if single else 10, 400), stateful_step_count=60, deadline=None
        ),
    )
    full = "refused" if policy == "refuse_new" else "dropped"
    wanted = ("stale", "completed", "acknowledged", "duplicate", "dead", "redelivered", full)
    tame = [event for event in (*wanted, "retried", "alone") if Lifecycle.seen[event] < 5]
    assert not (single and tame), f"the runs were too tame to show {tame}: {Lifecycle.seen}"
