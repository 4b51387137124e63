"""Any mix of the sync manager's methods, by several holders: each reply is sent once, in order.

Three managers on one clock call any method about any reply, while some of them are sending. A
manager may be killed, or paused until its hold is over, while it sends; only then may another
manager get permission to send the same reply. The second test lets two running roles and a manager
work on the same conversations, without faults: no reply is sent twice. With kills and pauses of
processes that have a role and a manager: tests/faults/test_conversation_holders.py.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angarium.conversations import keys
from angarium.conversations.compat import MessageSyncManager, SyncMessageOptions
from angarium.conversations.errors import AckUnknown, ReplyUnknown, RequestUnknown
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import MinMessageInfo, OutgoingReply
from angarium.runtime.application import Application
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.runtime import Runtime
from tests.conversations.harness import task
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

HOLDERS = 3
STEPS = 300
CONVERSATIONS = ("c0", "c1")
DEADLINE_S = 60.0
GONE = (ReplyUnknown, AckUnknown)
ENDS = ("delivered", "expired", "cancelled", "dead")


def by(info: MinMessageInfo) -> SyncMessageOptions:
    return SyncMessageOptions(info.response_id, conversation_id=info.conversation_id)


REMOVALS = ["retire", "remove", "remove siblings", "delete", "register", "error"]
KEPT = ["renew", "renew", "renew", "await", "await group", "first", "read", "siblings"]


async def call_any(
    manager: MessageSyncManager,
    runtime: Runtime,
    info: MinMessageInfo,
    draw: random.Random,
    kept: int = 8,
) -> tuple[str, str]:
    """Any method about this reply, besides those that create and send; (what, its status).
    `kept`: how many calls leave replies where they are for each that removes some."""
    partition = manager.store.partition_of(info.conversation_id)
    key = runtime.keyspace.name(keys.CONVERSATION_RESPONSE, partition, info.response_id)
    assert MinMessageInfo.read(manager.generate_unique_min_info_key(info).encode()) == info
    name, status = draw.choice(KEPT * kept + REMOVALS), ""
    if name == "renew":
        status = await manager.update_awaited_expires(info.response_id)
    elif name == "await":
        await manager.set_awaited_by_response_id(by(info))
    elif name == "await group":
        await manager.set_awaited_by_request_id(info.conversation_id, info.request_id)
    elif name == "first":
        await manager.get_first_conversation_message(info.conversation_id)
    elif name == "read":
        await manager.get_conversation_message(by(info), {"taskItem": 0})
    elif name == "siblings":
        group = await manager.get_all_siblings(key)
        status = "" if info in group.siblings else "ended meanwhile"
    elif name == "retire":
        await manager.remove_all_references_at_time(by(info), draw.choice([0, 5, 60]))
    elif name == "remove":
        await manager.remove_request_message(by(info), draw.random() < 0.5)
    elif name == "remove siblings":
        await manager.remove_all_siblings(await manager.get_all_siblings(key))
    elif name == "delete":
        await manager.delete_conversation_message(by(info))
    elif name == "register":
        which: list[tuple[str | None, str | None]] = [
            (None, "AWAITED"), (None, "WAITING"), ("sms", None), (None, None),
        ]  # fmt: skip
        await manager.delete_conversation_register(*draw.choice(which), info.of_request())
    else:
        await manager.set_error_by_id(by(info))
    return name, status


@dataclass
class Sending:
    info: MinMessageInfo
    until_ms: int
    at_fault: bool = False


@dataclass
class World:
    """Who sends what at this moment, and what was sent so far."""

    clock: FakeClock
    runtimes: list[Runtime]
    managers: list[MessageSyncManager]
    draw: random.Random
    replies: list[MinMessageInfo] = field(default_factory=list)
    accepted_at: dict[str, int] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    sending: dict[int, Sending] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    requests: list[MinMessageInfo] = field(default_factory=list)

    # Requests and replies

    async def ask(self, who: int) -> None:
        request = MinMessageInfo(f"r{len(self.requests)}", "", self.draw.choice(CONVERSATIONS))
        fresh = self.managers[who].get_init_default_values(
            "web", request.conversation_id, request.request_id, 1
        )
        await self.managers[who].create_conversation_register(
            fresh.origin, fresh.conversation_id, fresh.request_id
        )
        self.requests.append(request)

    async def answer(self, who: int) -> None:
        if not self.requests:
            return
        request = self.draw.choice(self.requests[-3:])
        response_id = f"s{len(self.replies)}"
        with suppress(RequestUnknown):
            accepted = await self.managers[who].mark_pending_conversation_register(
                self.draw.choice(["", "sms"]), request.conversation_id, request.request_id,
                task(1), "", response_id,
            )  # fmt: skip
            assert accepted.held
            self.replies.append(accepted.info)
            self.accepted_at[response_id] = len(self.sent)

    # Sending

    async def try_to_send(self, who: int) -> None:
        """Ask about the first and about recent replies until one may be sent."""
        asked = list(self.replies[-4:])
        for conversation in CONVERSATIONS:
            first = await self.managers[who].get_first_conversation_message(conversation)
            if first is not None:
                asked.append(first.info())
        for info in asked:
            if who in self.sending:
                return
            found = await self.managers[who].can_send_conversation_message(
                info.conversation_id, info.request_id, "", info.response_id
            )
            self.seen[found.status] += 1
            if found.status == "send":
                self.may_send(who, info)
                assert found.hold_ms is not None
                assert found.hold_ms >= 15_000
                self.sent.append(info.response_id)
                self.sending[who] = Sending(info, self.clock.now_ms() + found.hold_ms)

    def may_send(self, who: int, info: MinMessageInfo) -> None:
        """Nobody else sends it now, and it was not sent before, unless its sender had a fault."""
        for other, sending in self.sending.items():
            if other != who and sending.info == info:
                lapsed = sending.until_ms <= self.clock.now_ms()
                assert lapsed or sending.at_fault, f"{info} is being sent by {other}"
                self.excused.add(info.response_id)
        if info.response_id in self.sent:
            assert info.response_id in self.excused, f"{info} was sent before"

    async def end_sending(self, who: int) -> None:
        sending = self.sending.pop(who, None)
        if sending is None:
            return
        info, manager = sending.info, self.managers[who]
        if self.draw.random() < 0.3:
            with suppress(*GONE):
                await manager.delete_conversation_message(by(info))
            return
        ack = f"ack-{info.response_id}"
        status = await manager.mark_sent_conversation_register(
            info.conversation_id, info.request_id, "", info.response_id, ack
        )
        self.seen[f"marked {status}"] += 1
        if status == "sent" and self.draw.random() < 0.7:
            options = SyncMessageOptions(async_response_id=ack)
            assert await manager.delete_conversation_message(options) == "delivered"

    async def kill(self, who: int) -> None:
        """A new manager takes its place; its send was never reported."""
        sending = self.sending.pop(who, None)
        if sending is not None:
            self.excused.add(sending.info.response_id)
            self.seen["killed"] += 1
        self.managers[who] = MessageSyncManager(self.runtimes[who])

    async def pass_time(self, who: int) -> None:
        jumps = [1, 500, 4_999, 5_000, 10_000, 29_000, 31_000]
        # Without a send on its way, a long jump would only end the requests.
        self.clock.jump(self.draw.choice(jumps if self.sending else jumps[:4]))
        for sending in self.sending.values():
            if sending.until_ms <= self.clock.now_ms():
                self.excused.add(sending.info.response_id)
                self.seen["paused"] += 1

    # The other methods

    async def take_awaited(self, who: int) -> None:
        taken = await self.managers[who].get_awaited_messages(self.draw.randrange(1, 9))
        self.seen["awaited taken"] += len(taken)

    async def any_other(self, who: int) -> None:
        info = self.some_reply()
        if info is not None:
            with suppress(*GONE):
                await self.call(who, info)

    async def call(self, who: int, info: MinMessageInfo) -> None:
        same_group = self.sending.get(who)
        name, outcome = await call_any(self.managers[who], self.runtimes[who], info, self.draw)
        assert outcome != "ended meanwhile", "nobody else acts here"
        self.seen[name] += 1
        self.seen[outcome] += 1
        if same_group is not None and name in ("await", "await group"):
            # Who gives back what it is sending has only itself to blame.
            given_back = same_group.info == info or (
                name == "await group" and same_group.info.of_request() == info.of_request()
            )
            same_group.at_fault = same_group.at_fault or given_back
            if given_back:
                self.excused.add(same_group.info.response_id)

    def some_reply(self) -> MinMessageInfo | None:
        """Often one that is being sent."""
        if self.sending and self.draw.random() < 0.5:
            return self.draw.choice(list(self.sending.values())).info
        return self.draw.choice(self.replies[-8:]) if self.replies else None

    async def run(self) -> None:
        steps: list[tuple[Callable[[int], Awaitable[None]], int]] = [
            (self.ask, 4), (self.answer, 10), (self.try_to_send, 12), (self.end_sending, 6),
            (self.take_awaited, 4), (self.any_other, 9), (self.pass_time, 2), (self.kill, 1),
        ]  # fmt: skip
        for _ in range(STEPS):
            (step,) = self.draw.choices(
                [each for each, _ in steps], weights=[weight for _, weight in steps]
            )
            await step(self.draw.randrange(HOLDERS))

    # At the end

    async def drain(self) -> None:
        self.sending.clear()
        manager = self.managers[0]
        for _ in range(60):
            self.clock.jump(31_000)
            for each in await manager.get_awaited_messages(1_000):
                found = await manager.store.check_reply(each.info, only_mine=True)
                if found.status == "send":
                    await manager.delete_conversation_message(by(each.info))
            for partition in manager.store.partitions:
                await manager.store.expire_requests(partition, 1_000)
            if await manager.in_flight() == (0, 0):
                return
        raise AssertionError("a request or reply never ended")

    def check_order(self) -> None:
        """A later reply left first only if the earlier one did not exist yet."""
        first = {each: self.sent.index(each) for each in self.sent}
        places = {info.response_id: self.place(info) for info in self.replies}
        conversation = {info.response_id: info.conversation_id for info in self.replies}
        for one in first:
            for other in first:
                if conversation[one] == conversation[other] and places[one] < places[other]:
                    in_order = first[one] < first[other]
                    assert in_order or self.accepted_at[one] > first[other], (one, other)

    def place(self, info: MinMessageInfo) -> tuple[int, int]:
        request = [each.request_id for each in self.requests].index(info.request_id)
        return request, self.replies.index(info)


async def check_journal(runtime: Runtime, replies: Sequence[MinMessageInfo]) -> dict[str, str]:
    """Each reply was accepted once and ended once, and none that was sent expired. Returns the
    ends."""
    events: dict[str, Counter[str]] = {}
    for partition in range(runtime.settings.partitions):
        for entry in await Journal(runtime).read(partition, entries_max=100_000):
            for event in decode_entry(*entry).events:
                events.setdefault(event.subject, Counter())[event.event] += 1
    found = {}
    for info in replies:
        counted = events[info.response_id]
        ends = [each for each in ENDS for _ in range(counted[each])]
        assert (counted["accepted"], len(ends)) == (1, 1), (info, counted)
        assert not (counted["sent"] and counted["expired"]), (info, counted)
        found[info.response_id] = ends[0]
    return found


async def check_nothing_left(runtime: Runtime, conversations: Iterable[str]) -> None:
    """Every key that is left has a time to live."""
    for partition in range(runtime.settings.partitions):
        name = runtime.keyspace.name(keys.PENDING_MESSAGES, partition)
        waits = runtime.keyspace.name(keys.WAITING_SENDER, partition, "o")
        opened = runtime.keyspace.name(keys.OPEN_REQUESTS, partition)
        for key in (name, waits, opened):
            assert await runtime.redis.call("EXISTS", key, key=key) == 0
    for conversation_id in conversations:
        partition = runtime.keyspace.partition_of(conversation_id)
        for kind in (keys.CONVERSATION_RESPONSES, keys.CONVERSATION_REQUESTS):
            key = runtime.keyspace.name(kind, partition, conversation_id)
            assert await runtime.redis.call("EXISTS", key, key=key) == 0, kind.name
        key = runtime.keyspace.name(keys.CONVERSATION_ORDER, partition, conversation_id)
        assert await runtime.redis.call("PTTL", key, key=key) != -1


@pytest.mark.timeout(900)
def test_any_mix_of_methods_sends_each_reply_once_and_in_order(any_redis_url: str) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=rounds(10, 700), deadline=None)
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        asyncio.run(play(any_redis_url, seed, seen))

    run()
    print(dict(seen))
    expected = {"send", "gone", "wait_response", "held", "renewed", "postponed",
                "killed", "paused", "marked sent", "awaited taken", "retire", "error"}  # fmt: skip
    assert expected <= {what for what, number in seen.items() if number}, dict(seen)


async def play(redis_url: str, seed: int, seen: Counter[str]) -> None:
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        runtimes: list[Runtime] = []
        fixed: dict[str, Any] = {}
        for _ in range(HOLDERS):
            runtime = await stack.enter_async_context(
                sample_runtime(redis_url, clock=clock, **fixed)
            )
            fixed = {"prefix": runtime.settings.prefix}
            runtimes.append(runtime)
        managers = [MessageSyncManager(runtime) for runtime in runtimes]
        world = World(clock, runtimes, managers, random.Random(seed), seen=seen)
        await world.run()
        world.check_order()
        await world.drain()
        await check_journal(runtimes[0], world.replies)
        await check_nothing_left(runtimes[0], CONVERSATIONS)


class Recorder:
    """The sender of a role; all roles and the manager write into one list."""

    def __init__(self, sent: list[str]) -> None:
        self.app = Application()
        self.sent = sent
        self.app.reply_sender()(self.send)

    async def send(self, reply: OutgoingReply) -> None:
        self.sent.append(reply.response_id)
        await asyncio.sleep(0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(rounds(2, 50)))
async def test_roles_and_a_manager_together_send_each_reply_once(
    any_redis_url: str, seed: int
) -> None:
    """The manager calls any method about any reply, while the roles send."""
    draw, sent = random.Random(seed), list[str]()
    async with AsyncExitStack() as stack:
        patient = {"message_ttl": 600_000}
        runtime = await stack.enter_async_context(
            sample_runtime(any_redis_url, conversations=patient)
        )
        prefix = runtime.settings.prefix
        for _ in range(2):
            other = await stack.enter_async_context(sample_runtime(any_redis_url, prefix=prefix))
            role = ConversationsInstance(other, Recorder(sent).app)
            await role.start()
            stack.push_async_callback(role.stop, 10)
        manager = MessageSyncManager(runtime)
        conversations = [f"c{number}" for number in range(6)]
        infos = await accept_in_disorder(manager, conversations, draw)
        busy = [
            asyncio.create_task(disturb(manager, runtime, infos, random.Random(seed + n)))
            for n in (1, 2)
        ]
        for name in conversations:
            infos.append(await accept(manager, name, 0, 0, held=True))

        async def done() -> bool:
            await send_own(manager, infos, sent)
            return await manager.in_flight() == (0, 0)

        await asyncio.gather(*busy)
        await eventually(done, DEADLINE_S)
        ends = await check_journal(runtime, infos)
        await check_nothing_left(runtime, conversations)
    assert len(sent) == len(set(sent)), Counter(sent).most_common(3)
    # A reply can be removed while its sender has permission; the next one may then be faster.
    delivered = [each for each in sent if ends[each] == "delivered"]
    assert len(delivered) > len(infos) // 4
    for name in conversations:
        ours = [each for each in delivered if each.startswith(f"{name}.")]
        assert ours == sorted(ours, key=lambda each: [int(n) for n in each.split(".")[1:]])


async def accept_in_disorder(
    manager: MessageSyncManager, conversations: Sequence[str], draw: random.Random
) -> list[MinMessageInfo]:
    """Replies to all requests but the first, so that nothing can be sent yet."""
    infos = []
    for name in conversations:
        for request in range(6):
            await manager.create_conversation_register("web", name, f"{name}.{request}")
        order = [request for request in range(1, 6) for _ in range(4)]
        draw.shuffle(order)
        made: Counter[int] = Counter()
        for request in order:
            held = draw.random() < 0.5
            infos.append(await accept(manager, name, request, made[request], held=held))
            made[request] += 1
    return infos


async def accept(
    manager: MessageSyncManager, name: str, request: int, number: int, *, held: bool
) -> MinMessageInfo:
    accepted = await manager.accept(
        name, f"{name}.{request}", f"{name}.{request}.{number}", task(number),
        hold="always" if held else "",
    )  # fmt: skip
    return accepted.info


async def disturb(
    manager: MessageSyncManager,
    runtime: Runtime,
    infos: Sequence[MinMessageInfo],
    draw: random.Random,
) -> None:
    """Any method about replies of any holder."""
    for _ in range(100):
        with suppress(*GONE):
            await call_any(manager, runtime, draw.choice(infos), draw, kept=10)


async def send_own(
    manager: MessageSyncManager, infos: list[MinMessageInfo], sent: list[str]
) -> None:
    for info in infos:
        found = await manager.can_send_conversation_message(
            info.conversation_id, info.request_id, "", info.response_id
        )
        if found.status == "send":
            sent.append(info.response_id)
            status = await manager.mark_sent_conversation_register(
                info.conversation_id, info.request_id, "", info.response_id
            )
            assert status == "sent"
            assert await manager.delete_conversation_message(by(info)) == "delivered"
