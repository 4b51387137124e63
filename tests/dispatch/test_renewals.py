"""Renewals: the scripts that compare holders, and the two frames on a worker's connection."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from angarium.dispatch.errors import FrameInvalid, FrameMisplaced, PayloadInvalid
from angarium.dispatch.frames import (
    IDS_MAX,
    Command,
    FrameReader,
    encode,
    encode_ids,
    encode_messages,
)
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.protocol import (
    DispatcherProtocol,
    Hello,
    ProtocolViolated,
    ReleaseReceived,
    RenewalReceived,
    WorkerProtocol,
    encode_rejection,
)
from tests.dispatch.harness import ACK_TIMEOUT_MS, dispatch_services, store_harness
from tests.dispatch.scripted_worker import scripted_worker
from tests.kit.clock import FakeClock

LEASE_S = ACK_TIMEOUT_MS / 1000
NOBODY = new_ids(1)[0]
RENEWING = Hello(consumer_id="w1", window=10, completes=True, renews=True)


# Scripts --------------------------------------------------------------------------------------


async def test_a_renewed_message_is_not_due_and_counts_no_delivery(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        (message_id,) = await ours.accepted(b"x")
        for _ in range(30):
            await clock.advance(LEASE_S * 0.9)
            assert await ours.renew(message_id) == ["renewed"]
            assert await ours.claim() == []
        await clock.advance(LEASE_S)
        assert await ours.claim() == [(message_id, 2)]
        assert await ours.reject(message_id, "no", delivery=2) == "requeued"
        value = (await ours.state()).attempts[message_id]
        assert value == b"2\nw1: no renewal within 2000 ms\nno"


async def test_f52_a_renewal_of_what_another_worker_has_changes_nothing(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        (message_id,) = await ours.accepted(b"x")
        await ours.renew(message_id, consumer="w1")
        await clock.advance(LEASE_S)
        await ours.claim()
        assert await ours.renew(message_id, consumer="w2", delivery=2) == ["renewed"]
        before = await ours.state()
        await clock.advance(0.5)
        assert await ours.renew(message_id, consumer="w1") == ["lost"]
        assert await ours.renew(message_id, consumer="w1", delivery=1) == ["lost"]
        assert await ours.reject(message_id, "late", consumer="w1") == "lost"
        assert await ours.reject(message_id, "", consumer="w1", delivery=1) == "lost"
        assert await ours.renew(NOBODY) == ["unknown"]
        assert await ours.state() == before
        # A finished result counts, whoever stores it.
        assert await ours.complete(message_id, consumer="w1") == [True]
        assert await ours.renew(message_id, consumer="w2", delivery=2) == ["unknown"]


async def test_a_message_that_waits_for_its_next_try_cannot_be_renewed(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        failed, unsent = await ours.accepted(b"x", b"y", sent=1)
        await ours.reject(failed, "no", 1_000)
        before = await ours.state()
        assert await ours.renew(failed, unsent) == ["lost", "lost"]
        assert await ours.state() == before


async def test_a_claim_can_leave_out_what_workers_may_have(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        sent, unsent = await ours.accepted(b"x", b"y", sent=1)
        await clock.advance(LEASE_S)
        claim = await ours.store.claim(ours.partition, ours.term, 10, held_too=False)
        assert claim is not None
        assert [each.message_id for each in claim.messages] == [unsent]
        assert not claim.full
        assert await ours.claim() == [(sent, 2)]


async def test_f7_unsent_messages_are_returned_only_under_the_newest_term(
    any_redis_url: str,
) -> None:
    async with store_harness(any_redis_url) as ours:
        ids = await ours.accepted(*[b"x"] * 20)
        old, ours.term = ours.term, await ours.take_over()
        before = await ours.state()
        assert not await ours.store.return_unsent(ours.partition, old, ids)
        assert await ours.state() == before
        assert await ours.store.return_unsent(ours.partition, ours.term, [*ids, NOBODY])
        assert sorted(await ours.claim()) == sorted((each, 1) for each in ids)
        assert (await ours.event_counts())["returned"] == 20


async def test_many_failures_keep_the_newest_reasons(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 100}) as ours:
        (message_id,) = await ours.accepted(b"x")
        for number in range(1, 51):
            assert await ours.reject(message_id, f"reason {number}", 0) == "requeued"
            assert await ours.claim() == [(message_id, number + 1)]
        assert await ours.reject(message_id, "the end", last=True) == "dead"
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert letter.deliveries == 51
        assert letter.reasons == [*[f"reason {number}" for number in range(32, 51)], "the end"]


# The wire -------------------------------------------------------------------------------------


def problem_of(side: DispatcherProtocol | WorkerProtocol, data: bytes) -> type[FrameInvalid]:
    (event,) = side.receive(data)
    assert isinstance(event, ProtocolViolated)
    return type(event.error)


def test_ids_are_split_into_frames_of_limited_size() -> None:
    ids = new_ids(2 * IDS_MAX + 1)
    data = encode_ids(Command.RENEW_MESSAGES, ids)
    frames = FrameReader(1 << 20).feed(data)
    assert [len(payload) // 36 for _, payload in frames] == [IDS_MAX, IDS_MAX, 1]
    events = DispatcherProtocol(1 << 20, None, dials=True).receive(data)
    assert [each for event in events for each in event.ids] == ids  # type: ignore[union-attr]
    assert all(isinstance(event, RenewalReceived) for event in events)
    release = encode_ids(Command.RELEASE_MESSAGES, ids[:2])
    for side in (DispatcherProtocol, WorkerProtocol):
        assert side(1 << 20, None, dials=False).receive(release) == [ReleaseReceived(ids[:2])]


@pytest.mark.parametrize(
    "payload",
    [b"", b"x", NOBODY[:-1], NOBODY + b"x", NOBODY * 2 + b"\n", NOBODY * (IDS_MAX + 1)],
    ids=["nothing", "text", "a short id", "more", "a line", "too many"],
)
@pytest.mark.parametrize("command", [Command.RENEW_MESSAGES, Command.RELEASE_MESSAGES])
def test_a_frame_of_anything_but_ids_is_refused(command: Command, payload: bytes) -> None:
    side = DispatcherProtocol(1 << 20, None, dials=True)
    assert problem_of(side, encode(command, payload)) is PayloadInvalid


def test_a_worker_accepts_no_renewals() -> None:
    side = WorkerProtocol(1 << 20, None, dials=False)
    assert problem_of(side, encode_ids(Command.RENEW_MESSAGES, [NOBODY])) is FrameMisplaced


async def test_a_worker_learns_the_lease_and_what_it_lost(redis_url: str) -> None:
    async with scripted_worker(RENEWING) as a, dispatch_services(redis_url) as ours:
        dispatcher = await ours.add_dispatcher(consumers=(a.address,), ack_timeout_ms=700)
        await ours.publish(b"1", b"2")
        await ours.wait_until(lambda: len(a.messages) >= 2)
        hello = next(payload for command, payload in a.frames if command == Command.HELLO)
        assert b'"lease_ms":700' in hello
        renewed, silent = [message_id for message_id, _ in a.messages[:2]]

        def renew_until_the_other_came_again() -> bool:
            a.write(encode_ids(Command.RENEW_MESSAGES, [renewed, NOBODY]))
            return silent in [message_id for message_id, _ in a.messages[2:]]

        await ours.wait_until(renew_until_the_other_came_again)
        assert Counter(each for each, _ in a.messages)[renewed] == 1
        released = [each for command, each in a.frames if command == Command.RELEASE_MESSAGES]
        assert any(silent in each for each in released), "it learns that it lost the message"
        assert any(NOBODY in each for each in released)
        assert renewed not in b"".join(released)
        assert dispatcher.metrics.renewals_lost > 0
        assert dispatcher.metrics.renewed > 0


async def test_a_renewal_by_a_worker_that_did_not_get_the_message_has_no_effect(
    redis_url: str,
) -> None:
    other = Hello(consumer_id="w2", window=10, completes=True, renews=True)
    async with (
        scripted_worker(RENEWING) as a,
        scripted_worker(other) as b,
        dispatch_services(redis_url, ack_timeout_ms=1_000) as ours,
    ):
        dispatcher = await ours.add_dispatcher(consumers=(a.address, b.address))
        await ours.wait_until(lambda: dispatcher.workers.free_slots == 20)
        await ours.publish(b"1")
        await ours.wait_until(lambda: len(a.messages) + len(b.messages) == 1)
        holder, liar = (a, b) if a.messages else (b, a)
        ((message_id, _),) = holder.messages

        def lie_until_it_is_due() -> bool:
            liar.write(encode_ids(Command.RENEW_MESSAGES, [message_id]))
            return bool(liar.messages)

        await ours.wait_until(lie_until_it_is_due)
        assert liar.messages == [(message_id, b"1")]


@pytest.mark.limit("ack_waiting_max")
async def test_too_many_renewals_at_once_are_pushed_back_and_all_answered(redis_url: str) -> None:
    """They are of messages that nobody has; the dispatcher keeps none of them."""
    count, limits = 20_000, {"ack_waiting_max": 100}
    async with scripted_worker(RENEWING) as a, dispatch_services(redis_url, limits=limits) as ours:
        dispatcher = await ours.add_dispatcher(consumers=(a.address,))
        await ours.wait_until(lambda: dispatcher.workers.free_slots == 10)
        ids = new_ids(count)
        a.write(encode_ids(Command.RENEW_MESSAGES, ids))

        def released() -> set[bytes]:
            frames = [each for command, each in a.frames if command == Command.RELEASE_MESSAGES]
            return {each[at : at + 36] for each in frames for at in range(0, len(each), 36)}

        await ours.wait_until(lambda: len(released()) >= count)
        assert released() == set(ids)
        assert dispatcher.metrics.acks_paused > 0
        # The connection is read again, and the worker gets messages.
        await ours.publish(b"1")
        await ours.wait_until(lambda: len(a.messages) == 1)
        assert dispatcher.metrics.renewals_lost == count
        (connection,) = dispatcher.workers.connections
        assert [*connection.unacknowledged] == [a.messages[0][0]]


async def test_a_message_goes_to_a_worker_without_renewals_again_after_the_time_out(
    redis_url: str,
) -> None:
    async with scripted_worker() as plain, dispatch_services(redis_url) as ours:
        await ours.add_dispatcher(consumers=(plain.address,), ack_timeout_ms=500)
        await ours.publish(b"1")
        await ours.wait_until(lambda: len(plain.messages) >= 2)
        assert {command for command, _ in plain.frames} == {Command.PROCESS_MESSAGE}


async def test_a_released_message_is_due_and_frees_its_slot(redis_url: str) -> None:
    hello = Hello(consumer_id="w1", window=1, completes=True, renews=True)
    async with scripted_worker(hello) as a, dispatch_services(redis_url) as ours:
        dispatcher = await ours.add_dispatcher(consumers=(a.address,), ack_timeout_ms=60_000)
        await ours.publish(b"1", b"2")
        await ours.wait_until(lambda: len(a.messages) == 1)
        a.write(encode_ids(Command.RELEASE_MESSAGES, [a.messages[0][0], NOBODY]))
        await ours.wait_until(lambda: len(a.messages) == 2)
        assert dispatcher.metrics.rejected == 1


async def test_a_worker_gives_back_what_exceeds_its_window(redis_url: str) -> None:
    """A dispatcher of release 0.1 forgets a window's content after some seconds."""
    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        worker = await ours.add_worker(never_ends, options={"window": 3})
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.ports["worker"])
        ids = new_ids(5)
        writer.write(encode_messages([(each, b"1") for each in ids]))
        frames: list[tuple[int, bytes]] = []
        splitter = FrameReader(1 << 20)
        async with asyncio.timeout(30):
            while len(frames) < 3:
                frames += splitter.feed(await reader.read(10_000))
        assert [FrameReader(1 << 20).feed(encode_rejection(each))[0] for each in ids[3:]] == [
            frame for frame in frames if frame[0] == Command.NACK_MESSAGE
        ]
        assert len(worker._held) == 3
        writer.close()
        worker._queue.clear()
        for each in ids:
            worker._held.remove(each)


async def never_ends(_: object) -> None:
    await asyncio.Event().wait()
