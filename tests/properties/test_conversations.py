"""Conversations under any interleaving of processes, crashes, lost ACKs, expiries and callbacks.

The processes have different senders, and no process may get a reply that it can't send. The
machine keeps a model of all requests and replies, and every answer of the scripts must agree with
it: whether a reply may be sent, which process holds it, and its state. At the end one process
handles what is left, and the journal must have exactly one end for each reply.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

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

from angarium.conversations.errors import RequestUnknown
from angarium.conversations.model import GONE, TRANSITIONS, MinMessageInfo
from angarium.conversations.script_values import NewReply, TakeResult
from angarium.conversations.store import WAITING
from angarium.runtime.runtime import Runtime
from tests.conversations.harness import Harness
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_runtime

# The senders of each process. A reply that names none requires `o` (its origin) or `default`.
SENDERS = (("a",), ("b",), ("a", "default"))
NEEDS = {"n:a": {"a"}, "n:b": {"b"}, "n:nobody": {"nobody"}, "": {"o", "default"}}
INSTANCES = len(SENDERS)
CONVERSATIONS = ("c0", "c1", "c2")
WHICH = st.integers(0, 10_000)
INSTANCE = st.integers(0, INSTANCES - 1)
NEED = st.sampled_from(["n:a", "n:a", "n:b", "n:b", "", "n:nobody"])
EXPECTED = {
    "send", "wait_request", "wait_response", "gone", "taken", "expired", "refused", "awaited",
    "no_sender", "waited",
    "cancelled", "sent crash", "sent lost", "sent ack", "sent unasked",
}  # fmt: skip
MESSAGE_TTL, AWAITED_TTL, PENDING_TTL, SENT_TTL = 10_000, 900_000, 30_000, 5_000


@dataclass(eq=False)
class ModelRequest:
    id: str
    conversation: str
    position: int
    until_ms: int
    replies: int = 0
    closed: bool = False


@dataclass(eq=False)
class ModelReply:
    info: MinMessageInfo
    request: ModelRequest
    number: int
    until_ms: int
    due_ms: int
    holder: str | None
    status: str
    need: str
    ended: bool = False
    waits: bool = False  # for a process with its sender
    retries: int = 0
    failed: bool = False  # a send of its group failed

    @property
    def place(self) -> tuple[int, int]:
        return self.request.position, self.number


@dataclass
class Model:
    requests: list[ModelRequest] = field(default_factory=list)
    replies: dict[str, ModelReply] = field(default_factory=dict)

    def live(self, conversation: str, now_ms: int) -> list[ModelReply]:
        found = [
            each
            for each in self.replies.values()
            if not each.ended
            and each.until_ms > now_ms
            and each.info.conversation_id == conversation
        ]
        return sorted(found, key=lambda each: each.place)

    def verdict(self, reply: ModelReply, actor: str, now_ms: int) -> tuple[str, str | None]:
        """The status that the script must return, and the id of the first reply."""
        if reply.ended or reply.until_ms <= now_ms or reply.status == "SENT":
            return "gone", None
        if reply.holder != actor:
            return "gone", None
        conversation = reply.info.conversation_id
        first = self.live(conversation, now_ms)[0]
        if first is not reply:
            return "wait_response", first.info.response_id
        for request in self.requests:
            unanswered = request.replies == 0 and not request.closed
            if (
                request.conversation == conversation
                and request.position < reply.request.position
                and unanswered
                and request.until_ms > now_ms
            ):
                return "wait_request", None
        return "send", reply.info.response_id


def can_send(instance: int, need: str) -> bool:
    return not NEEDS[need].isdisjoint(SENDERS[instance])


class Conversations(RuleBasedStateMachine):
    url: str
    seen: ClassVar[Counter[str]] = Counter()

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.contexts: list[Any] = []
        self.processes: list[Harness] = []
        self.prefix: dict[str, Any] = {}
        self.serial = 0
        self.model = Model()
        self.left: list[str] = []
        for senders in SENDERS:
            self.processes.append(self.start(senders))
        for conversation in CONVERSATIONS:
            self.open_request(conversation, 0)
            self.open_request(conversation, 1)

    def start(self, senders: Sequence[str] | None) -> Harness:
        self.serial += 1
        context = sample_runtime(self.url, actor=f"p{self.serial}", clock=self.clock, **self.prefix)
        runtime: Runtime = self.do(context.__aenter__())
        self.contexts.append(context)
        self.prefix = {"prefix": runtime.settings.prefix}
        process: Harness = self.do(self.open_process(runtime, senders))
        return process

    async def open_process(self, runtime: Runtime, senders: Sequence[str] | None) -> Harness:
        return Harness(runtime, self.clock, senders)

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def held(self, actor: str) -> list[ModelReply]:
        return [r for r in self.model.replies.values() if r.holder == actor and not r.ended]

    def in_flight(self) -> list[ModelReply]:
        return [r for r in self.model.replies.values() if not r.ended]

    # Coming in

    @rule(conversation=st.sampled_from(CONVERSATIONS), instance=INSTANCE)
    def open_request(self, conversation: str, instance: int) -> None:
        number = len(self.model.requests)
        which = MinMessageInfo(f"r{number}", "", conversation)
        status, position = self.do(self.processes[instance].store.create_request(which, "o", 1, ""))
        assert status == "created"
        request = ModelRequest(which.request_id, conversation, position, self.now_ms + MESSAGE_TTL)
        earlier = [r.position for r in self.model.requests if r.conversation == conversation]
        assert position == max(earlier, default=0) + 1
        self.model.requests.append(request)

    @rule(which=WHICH, instance=INSTANCE, held=st.booleans(), need=NEED)
    def reply(self, which: int, instance: int, held: bool, need: str) -> None:
        """To any request that ever was: late callbacks come to old ones."""
        recent = self.model.requests[-6:]
        request = recent[-1 - which % len(recent)]
        if request.conversation != CONVERSATIONS[-1] and need == "n:nobody":
            need = "n:a"  # one blocked conversation is enough
        response_id = f"s{len(self.model.replies)}"
        new = NewReply(
            request.conversation, request.id, response_id, 2, b"{}", hold="near" if held else "",
            required_sender=need,
        )  # fmt: skip
        process = self.processes[instance]
        if request.closed or request.until_ms <= self.now_ms:
            with pytest.raises(RequestUnknown):
                self.do(process.store.accept_reply(new))
            self.seen["refused"] += 1
            return
        accepted = self.do(process.store.accept_reply(new))
        held = held and can_send(instance, need)
        assert accepted.held is held
        request.replies += 1
        request.until_ms = self.now_ms + AWAITED_TTL
        self.model.replies[response_id] = ModelReply(
            accepted.info,
            request,
            request.replies,
            self.now_ms + AWAITED_TTL,
            self.now_ms + (PENDING_TTL if held else 0),
            process.runtime.actor if held else None,
            "PENDING" if held else "WAITING",
            need,
        )
        assert (self.do(process.store.accept_reply(new))).duplicate

    @rule(which=WHICH, instance=INSTANCE, held=st.booleans(), needs=st.lists(NEED, max_size=3))
    def ask_and_answer(self, which: int, instance: int, held: bool, needs: list[str]) -> None:
        conversation = CONVERSATIONS[which % len(CONVERSATIONS)]
        if which % 2:
            self.open_request(conversation, instance)  # may stay without a reply
        self.open_request(conversation, instance)
        for offset, need in enumerate(needs):
            self.reply(which + offset, instance, held, need)

    # Being taken

    @rule(instance=INSTANCE)
    def fetch_new(self, instance: int) -> None:
        self.claim(instance, 0)

    @rule(instance=INSTANCE, others=st.booleans())
    def fetch_waiting(self, instance: int, others: bool) -> None:
        """With `others`, another process claims due replies in between."""
        store = self.processes[instance].store
        for partition in store.partitions:
            infos = self.do(store.pop_waiting(partition, 3))
            for info in infos:
                reply = self.model.replies[info.response_id]
                assert can_send(instance, reply.need)
                reply.due_ms = min(reply.due_ms, self.now_ms + PENDING_TTL)
            if others:
                self.claim((instance + 1) % INSTANCES, 0)
            self.taken(instance, infos, self.do(store.take(infos, WAITING)))

    @rule(instance=INSTANCE, pause_ms=st.sampled_from([0, 0, 0, 31_000]))
    def claim(self, instance: int, pause_ms: int) -> None:
        """With a pause, the claim expires and another process claims the replies."""
        store = self.processes[instance].store
        for partition in store.partitions:
            claim, infos, _ = self.do(store.claim_awaited(partition, 4))
            for info in infos:
                assert self.model.replies[info.response_id].due_ms <= self.now_ms
            if pause_ms and infos:
                self.clock.jump(pause_ms)
                other = self.processes[(instance + 1) % INSTANCES].store
                second, again, _ = self.do(other.claim_awaited(partition, 4))
                self.taken((instance + 1) % INSTANCES, again, self.do(other.take(again, second)))
            self.taken(instance, infos, self.do(store.take(infos, claim)))

    def taken(self, instance: int, infos: list[MinMessageInfo], outcomes: list[TakeResult]) -> None:
        for info, outcome in zip(infos, outcomes, strict=True):
            reply = self.model.replies[info.response_id]
            self.seen[outcome.status] += 1
            if outcome.status == "taken":
                assert not reply.ended
                assert reply.until_ms > self.now_ms
                lapsed = reply.due_ms <= self.now_ms
                assert reply.status in ("WAITING", "AWAITED") or lapsed
                assert can_send(instance, reply.need)
                assert outcome.taken is not None
                retries = outcome.taken.reply.awaited_retries
                # Waiting is no retry: only a failure or the loss of a holder may count.
                tried = reply.failed or reply.status == "PENDING"
                assert retries - reply.retries in ((0, 1) if tried else (0,))
                reply.retries, reply.failed = retries, False
                self.seen["waited"] += reply.waits
                reply.waits = False
                reply.holder = self.processes[instance].runtime.actor
                reply.status = "PENDING"
                reply.due_ms = min(self.now_ms + PENDING_TTL, reply.until_ms)
            elif outcome.status == "no_sender":
                assert not can_send(instance, reply.need)
                assert reply.status != "PENDING" or reply.due_ms <= self.now_ms
                reply.status = "AWAITED" if reply.status == "PENDING" else reply.status
                reply.holder, reply.waits = None, True
                reply.due_ms = min(self.now_ms + PENDING_TTL, reply.until_ms)
            elif outcome.status in ("expired", "delivered"):
                assert reply.until_ms <= self.now_ms
                assert (outcome.status == "delivered") == (reply.status == "SENT")
                reply.ended = True
                self.woken(info.conversation_id)

    # Leaving

    @rule(instance=INSTANCE, which=WHICH)
    def check(self, instance: int, which: int) -> None:
        process = self.processes[instance]
        replies = list(self.model.replies.values())[-12:]
        if not replies:
            return
        reply = replies[which % len(replies)]
        expected, first = self.model.verdict(reply, process.runtime.actor, self.now_ms)
        found = self.do(process.store.check_reply(reply.info, only_mine=True))
        assert found.status == expected
        if found.status == "wait_response":
            assert found.first_response_id == first
        self.seen[found.status] += 1
        self.renewed(reply, found.status)
        self.make_expired_due(reply.info.conversation_id)

    def renewed(self, reply: ModelReply, status: str) -> None:
        """Permission to send renews a hold that would end soon."""
        if status == "send" and reply.due_ms - self.now_ms < PENDING_TTL / 2:
            reply.due_ms = self.now_ms + PENDING_TTL
            reply.until_ms = max(reply.until_ms, reply.due_ms)

    @rule(instance=INSTANCE)
    def check_all_held(self, instance: int) -> None:
        self.fetch_new(instance)
        actor = self.processes[instance].runtime.actor
        for reply in self.held(actor):
            expected, _ = self.model.verdict(reply, actor, self.now_ms)
            found = self.do(self.processes[instance].store.check_reply(reply.info, only_mine=True))
            assert found.status == expected
            self.seen[expected] += 1
            self.renewed(reply, found.status)
            self.make_expired_due(reply.info.conversation_id)

    @rule(instance=INSTANCE, which=WHICH, way=st.sampled_from(["ack", "lost", "unasked", "crash"]))
    def send(self, instance: int, which: int, way: str) -> None:
        """The process sends one of its replies; `way` is what follows."""
        process = self.processes[instance]
        ours = [
            r
            for r in self.held(process.runtime.actor)
            if self.model.verdict(r, process.runtime.actor, self.now_ms)[0] == "send"
        ]
        if not ours:
            return
        reply = ours[which % len(ours)]
        assert self.do(process.store.check_reply(reply.info, only_mine=True)).status == "send"
        self.renewed(reply, "send")
        self.make_expired_due(reply.info.conversation_id)
        self.left.append(reply.info.response_id)
        self.seen[f"sent {way}"] += 1
        if way == "crash":
            self.crash(instance)
        elif way == "unasked":
            assert self.do(process.store.finish(reply.info, "unasked"))[0] == "delivered"
            reply.ended = True
            self.woken(reply.info.conversation_id)
        else:
            ack = f"ack-{reply.info.response_id}"
            assert self.do(process.store.report_sent(reply.info, ack)) == "sent"
            reply.status = "SENT"
            reply.until_ms = reply.due_ms = self.now_ms + SENT_TTL
            if way == "ack":
                self.acknowledge(ack, reply)

    @rule(which=WHICH, way=st.sampled_from(["ack", "lost", "unasked", "crash"]))
    def serve(self, which: int, way: str) -> None:
        """Each process takes the replies it can send, and sends one."""
        for instance in range(INSTANCES):
            self.fetch_new(instance)
            self.fetch_waiting(instance, others=False)
        for instance in range(INSTANCES):
            self.send(instance, which, way)

    def acknowledge(self, ack: str, reply: ModelReply) -> None:
        store = self.processes[0].store
        assert self.do(store.find_ack(ack, None)) == reply.info
        assert self.do(store.finish(reply.info, "acknowledged", ack))[0] == "delivered"
        assert self.do(store.find_ack(ack, None)) is None
        reply.ended = True
        self.woken(reply.info.conversation_id)

    def woken(self, conversation: str) -> None:
        """An awaited first reply, and awaited ones near it, are due at once."""
        order = [r for r in self.in_flight() if r.info.conversation_id == conversation]
        order.sort(key=lambda each: each.place)
        if order and order[0].holder is None and order[0].status == "AWAITED":
            for reply in order[:32]:
                if reply.status == "AWAITED":
                    reply.due_ms = min(reply.due_ms, self.now_ms)

    def make_expired_due(self, conversation: str) -> None:
        """A check may have removed expired replies; the model allows both."""
        for reply in self.in_flight():
            if reply.info.conversation_id == conversation and reply.until_ms <= self.now_ms:
                reply.due_ms = min(reply.due_ms, self.now_ms)

    # Failing

    @rule(instance=INSTANCE, which=WHICH)
    def fail_for_now(self, instance: int, which: int) -> None:
        process = self.processes[instance]
        ours = [r for r in self.held(process.runtime.actor) if r.until_ms > self.now_ms]
        if not ours:
            return
        reply = ours[which % len(ours)]
        self.do(process.manager.set_awaited_by_request_id(
            reply.info.conversation_id, reply.info.request_id))  # fmt: skip
        for each in self.live_group(reply):
            mine = each.holder in (None, process.runtime.actor) or each.due_ms <= self.now_ms
            if each.status in ("PENDING", "WAITING") and mine:
                each.status, each.holder, each.failed = "AWAITED", None, True
                each.due_ms = self.now_ms  # retries are counted by the scripts; not before now
        self.seen["awaited"] += 1

    @rule(instance=INSTANCE, which=WHICH)
    def fail_for_good(self, instance: int, which: int) -> None:
        if which % 3:
            return  # not so often that nothing is left
        ours = self.held(self.processes[instance].runtime.actor)
        if not ours:
            return
        reply = ours[which % len(ours)]
        group = [r for r in self.in_flight() if r.request is reply.request]
        self.do(self.processes[instance].manager.cancel_group(reply.info, "fatal"))
        reply.request.closed = True
        for each in group:
            each.ended = True
        self.woken(reply.info.conversation_id)
        self.seen["cancelled"] += 1

    def live_group(self, reply: ModelReply) -> list[ModelReply]:
        return [
            r for r in self.in_flight() if r.request is reply.request and r.until_ms > self.now_ms
        ]

    @rule(instance=INSTANCE)
    def crash(self, instance: int) -> None:
        """A new process replaces it; no running process holds the old one's replies."""
        self.processes[instance] = self.start(SENDERS[instance])

    @rule(ms=st.sampled_from([1, 200, 1_000, 4_999, 5_000, 9_999, 30_000, 300_000]))
    def wait(self, ms: int) -> None:
        self.clock.jump(ms)

    @rule(seed=st.integers(0, 2**32))
    def storm(self, seed: int) -> None:
        """Forty of the rules in a row: long runs are rare when rules are drawn one by one."""
        draw = random.Random(seed)
        for _ in range(40):
            self.one_of_them(draw)
            self.states_change_only_as_drawn()

    def one_of_them(self, draw: random.Random) -> None:
        instance, which, flag = (
            draw.randrange(INSTANCES),
            draw.randrange(10_000),
            draw.random() < 0.5,
        )
        way = draw.choice(["ack", "ack", "lost", "unasked", "crash"])
        needs = draw.choices(list(NEEDS), weights=[4, 4, 1, 3], k=3)
        ms = draw.choice([1, 1, 200, 1_000, 4_999, 5_000, 9_999, 30_000, 900_000])
        steps: list[Callable[[], None]] = [
            lambda: self.ask_and_answer(which, instance, flag, needs[: 1 + which % 3]),
            lambda: self.reply(which, instance, flag, needs[0]),
            lambda: self.fetch_new(instance),
            lambda: self.fetch_waiting(instance, flag),
            lambda: self.claim(instance, 31_000 if which % 4 == 0 else 0),
            lambda: self.check_all_held(instance),
            lambda: self.send(instance, which, way),
            lambda: self.serve(which, way),
            lambda: self.serve(which, way),
            lambda: self.fail_for_now(instance, which),
            lambda: self.fail_for_good(instance, which),
            lambda: self.wait(ms),
        ]
        draw.choice(steps)()

    # Invariants

    @invariant()
    def states_change_only_as_drawn(self) -> None:
        if not hasattr(self, "processes"):
            return
        store = self.processes[0].store
        before: dict[str, str] = getattr(self, "statuses", {})
        self.statuses: dict[str, str] = {}
        for response_id, reply in self.model.replies.items():
            if before.get(response_id) == GONE:
                self.statuses[response_id] = GONE
                continue
            message = self.do(store.read_reply(response_id, reply.info.conversation_id))
            status = GONE if message is None else message.status
            former = before.get(response_id)
            if former is None:
                # A new reply may make several transitions before the first check.
                assert status in {GONE, "WAITING", "PENDING", "SENT", "AWAITED", "CANCEL"}
            elif status != former:
                assert status in TRANSITIONS[former], (response_id, former, status)
            self.statuses[response_id] = status

    def teardown(self) -> None:
        if not hasattr(self, "processes"):
            return
        self.drain()
        self.account()
        for context in self.contexts:
            self.do(context.__aexit__(None, None, None))
        self.loop.close()

    def drain(self) -> None:
        """One running process is enough, and no reply stays longer than its time."""
        process = self.start(None)
        store = process.store
        for _ in range(60):
            self.clock.jump(31_000)
            taken = self.do(process.manager.get_awaited_messages(1_000))
            for each in sorted(taken, key=lambda one: one.score):
                verdict = self.do(store.check_reply(each.info, only_mine=True)).status
                # Behind a reply with a longer back-off it is taken again when its claim expires.
                assert verdict in ("send", "gone", "wait_response")
                if verdict == "send":
                    self.do(store.finish(each.info, "unasked"))
            for partition in store.partitions:
                self.do(store.expire_requests(partition, 1_000))
            if all(self.do(store.in_flight(p)) == (0, 0) for p in store.partitions):
                return
        raise AssertionError("a request or reply never ended")

    def account(self) -> None:
        events: dict[str, Counter[str]] = {}
        for event, subject in self.do(self.processes[0].events()):
            events.setdefault(subject, Counter())[event] += 1
        ends = ("delivered", "expired", "cancelled", "dead")
        for response_id in self.model.replies:
            counted = events[response_id]
            assert counted["accepted"] == 1
            assert sum(counted[end] for end in ends) == 1, (response_id, counted)
        for request in self.model.requests:
            counted = events[request.id]
            assert counted["requested"] == 1
            assert (
                counted["answered"] + counted["request_expired"] + counted["request_removed"] == 1
            ), (request.id, counted)


@pytest.mark.timeout(900)
def test_any_interleaving_keeps_order_and_forgets_nothing(any_redis_url: str) -> None:
    Conversations.url = any_redis_url
    Conversations.seen = Counter()
    run_state_machine_as_test(
        Conversations,
        settings=settings(
            max_examples=rounds(40, 400), stateful_step_count=rounds(30, 60), deadline=None
        ),
    )
    seen = Conversations.seen
    print(dict(seen))
    happened = {what for what, number in seen.items() if number}
    missing = EXPECTED - happened
    assert not missing, f"the runs were too tame: no {missing} in {dict(seen)}"
