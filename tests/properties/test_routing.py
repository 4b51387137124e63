"""Recipient keys under any interleaving of instances, silence, messages, crashes, late calls."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
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

from angarium.routing import keys
from angarium.routing.errors import RecipientUnknown
from angarium.routing.finished_keys import FinishedKey
from angarium.routing.items import decode_inbound, id_of
from angarium.routing.store import KeyState, RoutingStore
from angarium.routing.transitions import TriedMessage
from angarium.runtime.runtime import Runtime
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock
from tests.routing.harness import STALE_MS, dead_inbound, events, messages_of, routing, take

pytestmark = pytest.mark.timeout(rounds(120, 1_800))
UIDS = st.sampled_from(["u1", "u2", "u3"])
KEYS = st.sampled_from(["k1", "k2", "k3", "k4", "k5"])


class Routing(RuleBasedStateMachine):
    """Three instances and five keys. The model: what was sent, taken and finished, in order."""

    url: str
    layout: str
    moved = 0
    late = 0
    tried = 0

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        # A small number of moves in one call, so that long moves are cut in pieces.
        self.context = routing(self.url, layout=self.layout, clock=self.clock, moves_max=2)
        self.runtime: Runtime
        self.store: RoutingStore
        self.runtime, self.store = self.loop.run_until_complete(self.context.__aenter__())
        self.sent: dict[str, list[str]] = defaultdict(list)
        self.finished: dict[str, list[str]] = defaultdict(list)
        self.handled: dict[str, list[str]] = defaultdict(list)
        self.in_hand: dict[str, dict[str, list[bytes]]] = defaultdict(dict)
        self.dead: dict[str, list[str]] = defaultdict(list)
        self.names = itertools.count()
        self.dead_letters = 0
        self.disturbed = False
        self.rebalanced = 0

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    @rule(uid=UIDS)
    def touch(self, uid: str) -> None:
        self.do(self.store.touch(uid))
        instances, _ = self.do(self.store.instances())
        assert uid in [each.uid for each in instances], "a live instance is stranded"

    @rule(key=KEYS, count=st.integers(1, 3))
    def message(self, key: str, count: int) -> None:
        payloads = [f"{key}-{next(self.names)}".encode() for _ in range(count)]

        async def send() -> list[str]:
            calls = [self.store.process_payload_recip_key(key, each) for each in payloads]
            return list(await asyncio.gather(*calls))

        statuses = self.do(send())
        self.sent[key] += [each.decode() for each in payloads]
        # In several partitions one may have lost its last instance; what is kept is found later.
        known, _ = self.do(self.store.instances())
        if known and self.store.partitions == 1:
            assert set(statuses) == {"queued"}

    @rule(uid=UIDS, again=st.booleans())
    def take(self, uid: str, again: bool) -> None:
        for partition in range(self.store.partitions):
            claim = self.do(self.store.claim(uid, partition, 10, again=again))
            if claim is None:
                continue
            wanted = [*claim.again, *claim.fresh]
            wanted = [key for key in wanted if key not in self.in_hand[uid]]
            if not wanted:
                continue
            taken = self.do(self.store.take(uid, partition, wanted, 2))
            for key, found in zip(wanted, taken, strict=True):
                items = messages_of(found)  # what was just claimed is owned
                self.in_hand[uid][key] = items
                self.handled[key] += [self._text(key, item) for item in items]
                if isinstance(found, TriedMessage):
                    Routing.tried += 1

    def _pick(self, which: int) -> tuple[str, str] | None:
        """An instance that has taken messages, and their key."""
        pairs = sorted((uid, key) for uid, held in self.in_hand.items() for key in held)
        return pairs[which % len(pairs)] if pairs else None

    @rule(which=st.integers(0, 99), part=st.integers(0, 2))
    def finish(self, which: int, part: int) -> None:
        """All of what is in hand or its beginning; by an owner, or by one that was."""
        found = self._pick(which)
        if found is None:
            return
        uid, key = found
        items = self.in_hand[uid].pop(key)
        done = items[:part] if part < 2 else items
        ends = FinishedKey(key, [(id_of(item), "") for item in done])
        partition = self.store.partition_of(key)
        (status,) = self.do(self.store.finish(uid, partition, [ends]))
        owner = self.do(self._state(key)).uid
        assert (status == "not_owner") == (owner != uid)
        if status == "not_owner":
            Routing.late += 1
            self.disturbed = True
        else:
            for item in done:
                self._ended(key, item)
        if len(done) < len(items):
            self.disturbed = True  # given back: it will be handled again

    def _ended(self, key: str, item: bytes) -> bool:
        """Whether it was the next of its key; whatever else is named has ended before."""
        text, next_one = self._text(key, item), len(self.finished[key])
        if self.sent[key][next_one : next_one + 1] != [text]:
            return False
        self.finished[key].append(text)
        return True

    @rule(which=st.integers(0, 99))
    def dead_letter(self, which: int) -> None:
        """The first of what is in hand is given up, the rest goes back."""
        found = self._pick(which)
        if found is None:
            return
        uid, key = found
        item = self.in_hand[uid].pop(key)[0]
        ends = FinishedKey(key, [(id_of(item), "no wallet")])
        (status,) = self.do(self.store.finish(uid, self.store.partition_of(key), [ends]))
        self.disturbed = True
        Routing.late += status == "not_owner"
        if status != "not_owner" and self._ended(key, item):
            text = self.finished[key].pop()
            self.sent[key].remove(text)
            self.dead[key].append(text)
            self.dead_letters += 1

    @rule()
    def revive(self) -> None:
        self.do(self._revive())

    async def _revive(self) -> None:
        letters = dead_inbound(self.runtime, self.store)
        dead = sum(map(len, self.dead.values()))
        assert await letters.retry_all() == {"retried": dead, "unusable": 0}
        for key, texts in self.dead.items():
            self.sent[key] += texts
        self.dead.clear()

    @rule(which=st.integers(0, 99))
    def finish_twice(self, which: int) -> None:
        """The reply was lost, and the call is made again."""
        found = self._pick(which)
        if found is None:
            return
        uid, key = found
        items = self.in_hand[uid][key]
        self.finish(which, 2)
        partition = self.store.partition_of(key)
        ends = FinishedKey(key, [(id_of(item), "") for item in items])
        self.do(self.store.finish(uid, partition, [ends]))

    @rule(uid=UIDS)
    def crash(self, uid: str) -> None:
        if self.in_hand.pop(uid, None):
            self.disturbed = True

    @rule(seconds=st.sampled_from([1, 14, 16]))
    def silence(self, seconds: int) -> None:
        self.do(self.clock.advance(seconds))

    @rule(uid=UIDS, key=KEYS)
    def all_but_one_fall_silent(self, uid: str, key: str) -> None:
        """With mail in hand somewhere, while one goes on."""
        for each in ("u1", "u2", "u3"):
            self.touch(each)
        self.message(key, 1)
        for each in ("u1", "u2", "u3"):
            self.take(each, again=False)
        self.silence(16)
        self.touch(uid)

    @rule(uid=UIDS, key=KEYS)
    def one_that_fell_silent_comes_back_late(self, uid: str, key: str) -> None:
        self.all_but_one_fall_silent(uid, key)
        self.sweep()
        pairs = sorted((who, key) for who, held in self.in_hand.items() for key in held)
        for which, (who, _) in enumerate(pairs):
            if who != uid:
                self.finish(which, 2)
                return

    @rule()
    def sweep(self) -> None:
        for _ in range(5):
            self.do(self.store.sweep())

    @rule(uid=UIDS)
    def retire(self, uid: str) -> None:
        self.do(self.store.retire(uid))

    @rule()
    def rebalance(self) -> None:
        self.rebalanced += self.do(self.store.rebalance())

    @invariant()
    def one_owner_and_exact_counts(self) -> None:
        if hasattr(self, "store"):
            self.do(self._check())

    async def _state(self, key: str) -> KeyState:
        try:
            return await self.store.show(key)
        except RecipientUnknown:  # its instance is gone, and nothing waits
            return KeyState(key, None, 0, 0, None, self.store.partition_of(key))

    async def _check(self) -> None:
        name, call = self.runtime.keyspace.name, self.runtime.redis.call
        for key in self.sent:
            partition = self.store.partition_of(key)
            state = await self._state(key)
            waiting = len(self.sent[key]) - len(self.finished[key])
            assert (state.pending, state.waiting) == (waiting, waiting), key
            assert self.finished[key] == self.sent[key][: len(self.finished[key])], "order"
            counts = name(keys.PENDING_COUNTS, partition)
            fields = [f"{uid}_{key}" for uid in ("", "u1", "u2", "u3")]
            found = await call("HMGET", counts, *fields, key=counts)
            assert sum(int(each or 0) for each in found) == waiting, "counted once"
            assert all(int(each or 0) >= 0 for each in found)
            if self.layout == "native":
                maps, mail = name(keys.UID_RECIP_KEYS, partition), name(keys.MAIL, partition)
                number = await call("ZSCORE", maps, key, key=maps)
                assert (number is not None) == (state.uid is not None)
                assert (await call("ZSCORE", mail, key, key=mail) is not None) == (waiting > 0)
            if not waiting:
                attempts = name(keys.ATTEMPTS, partition)
                assert not await call("HEXISTS", attempts, key, key=attempts)
        instances, _ = await self.store.instances()
        owners = [(await self._state(key)).uid for key in self.sent]
        for each in instances:
            assert each.keys == owners.count(each.uid)
        assert {owner for owner in owners if owner} <= {each.uid for each in instances}

    def _text(self, key: str, item: bytes) -> str:
        return decode_inbound(item, key).payload.decode()

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self.do(self._drain())
            self.do(self._audit())
        finally:
            self.do(self.context.__aexit__(None, None, None))
            self.loop.close()

    async def _drain(self) -> None:
        """One instance lives on; all the others are silent. It must get everything, in order."""
        await self.clock.advance(2 * STALE_MS / 1000)
        # What anybody had in hand is handled again: they are gone, or have lost track.
        self.disturbed |= any(self.in_hand.values())
        await self._revive()
        for _ in range(20):
            if all(self.finished[key] == sent for key, sent in self.sent.items()):
                break
            await self.store.touch("u1")
            await self.store.sweep()
            for partition in range(self.store.partitions):
                claim = await self.store.claim("u1", partition, 10, again=True)
                assert claim is not None
                for key in [*claim.again, *claim.fresh]:
                    items = await take(self.store, "u1", key, 10)
                    texts = [self._text(key, item) for item in items]
                    self.handled[key] += texts
                    self.finished[key] += texts
                    ends = FinishedKey(key, [(id_of(item), "") for item in items])
                    await self.store.finish("u1", partition, [ends])
        for key, sent in self.sent.items():
            assert self.finished[key] == sent, "each once, and in order"
            assert set(self.handled[key]) == set(sent)
            assert len(sent) == len(set(sent))
            if not self.disturbed:
                assert self.handled[key] == sent, "without faults exactly once"

    async def _audit(self) -> None:
        """The journal accounts for every message, and for every move of a key."""
        found = await events(self.runtime)
        names = [event.event for event in found]
        total = sum(map(len, self.sent.values()))
        assert names.count("handled") == total == next(self.names)
        assert names.count("dead") == self.dead_letters
        assert names.count("accepted") == total + self.dead_letters
        moves = [event for event in found if event.event == "reassigned"]
        for event in moves:
            if event.detail != "rebalance":
                silent_ms = int(str(event.detail).removeprefix("silent_ms="))
                assert silent_ms > STALE_MS, "a key moved from an instance that was not silent"
                Routing.moved += 1
        assert sum(event.detail == "rebalance" for event in moves) == self.rebalanced


@pytest.mark.parametrize("layout", ["native", "acapy"])
def test_any_interleaving_keeps_one_owner_exact_counts_and_order(
    any_redis_url: str, layout: str
) -> None:
    if layout == "acapy" and "+cluster" in any_redis_url:
        pytest.skip("published names can't share a slot")
    Routing.url, Routing.layout = any_redis_url, layout
    Routing.moved = Routing.late = Routing.tried = 0
    examples = rounds(15, 500) if "+cluster" in any_redis_url else rounds(40, 2_000)
    run_state_machine_as_test(
        Routing,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )
    assert Routing.moved > 10, "the runs were too tame to show anything"
    assert Routing.late > 0
    assert Routing.tried > 0
