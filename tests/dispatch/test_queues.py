"""Named queues: a message goes only to a worker that has its name, and waits while none has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from examples.dispatch_queues.app import app
from hypothesis import given
from hypothesis import strategies as st

from angarium import Angarium
from angarium.dispatch import keys, worker
from angarium.dispatch.accept_queue import AcceptQueue, AcceptQueueLimits
from angarium.dispatch.epochs import digest
from angarium.dispatch.protocol import Hello
from angarium.dispatch.queues import check_queue_name, pack, unpack
from angarium.dispatch.service import DispatchService
from angarium.dispatch.worker_group import WorkerGroup
from angarium.runtime.errors import InputInvalid, SettingInvalid
from angarium.runtime.process_report import read_processes
from angarium.runtime.runtime import Runtime
from tests.dispatch.harness import ACK_TIMEOUT_MS, StoreHarness, dispatch_services, store_harness
from tests.dispatch.processes import dispatch_processes
from tests.dispatch.scripted_worker import RawWorker, pool_harness, scripted_worker
from tests.kit.clock import FakeClock

NAMED = "examples.dispatch_queues.app:app"


# Names and memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emails", "a", "A.b-c_9", "x" * 64, ""])
def test_names_of_queues(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize("name", ["-a", "a b", "ä", "a\0b", "a@b", "a:b", "x" * 65, "epochs", "."])
def test_names_that_no_queue_can_have(name: str) -> None:
    with pytest.raises(InputInvalid, match="name of a queue"):
        check_queue_name(name)


@given(queue=st.sampled_from(["", "a", "emails"]), payload=st.binary(max_size=20))
def test_a_packed_message_keeps_its_queue_and_its_bytes(queue: str, payload: bytes) -> None:
    assert unpack(pack(queue.encode(), payload)) == (queue, payload)


def test_equal_payloads_of_two_queues_are_packed_differently() -> None:
    assert len({pack(b"", b"\0a\0x"), pack(b"a", b"x"), pack(b"", b"x")}) == 3


def test_a_batch_to_accept_is_of_one_queue_and_epoch() -> None:
    queue = AcceptQueue(0, 1, AcceptQueueLimits(100, 10_000, 10, 10_000))
    packed = [pack(b"a" if n % 2 else b"", b"%d" % n) for n in range(8)]
    queue.add(1, [(each, digest(each)) for each in packed])
    queue.add(2, [(packed[0], digest(packed[0]))])
    found = []
    while (batch := queue.next_batch(1)) is not None:
        found.append((batch.epoch, batch.queue, [payload for _, payload in batch.messages]))
        queue.accepted(batch)
    assert found == [
        (1, "", [b"0", b"2", b"4", b"6"]),
        (1, "a", [b"1", b"3", b"5", b"7"]),
        (2, "", [b"0"]),
    ]
    assert queue.messages == 0


def test_an_application_may_not_name_what_no_queue_can_be() -> None:
    wrong = Angarium()
    wrong.worker("two words")(lambda message: None)
    from angarium.settings import load

    with pytest.raises(SettingInvalid, match="two words"):
        worker.check(load(), wrong)


# Scripts --------------------------------------------------------------------------------------


async def claim_from(
    ours: StoreHarness, queue: str, count: int = 100
) -> tuple[list[tuple[bytes, int]], int]:
    claim = await ours.store.claim(ours.partition, ours.term, count, queue=queue)
    assert claim is not None
    return [(each.message_id, each.delivery) for each in claim.messages], claim.named


async def accept_into(ours: StoreHarness, queue: str, *payloads: bytes) -> list[bytes]:
    messages = ours.messages(*payloads)
    digests = b"".join(digest(payload) for payload in payloads)
    accepted = await ours.store.accept(
        ours.partition, ours.term, ours.epoch, messages, digests, 0, queue
    )
    assert accepted == (len(payloads), 0)
    return [message_id for message_id, _ in messages]


async def check_clean(ours: StoreHarness) -> None:
    """Nothing of a queue stays behind."""
    for key in (keys.MESSAGES_QUEUES, keys.MESSAGES_WAITING, keys.MESSAGES_ATTEMPTS):
        name = ours.name(key)
        assert await ours.runtime.redis.call("EXISTS", name, key=name) == 0, name


async def test_messages_wait_in_their_queue_in_order(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        first = await accept_into(ours, "a", b"1")
        await clock.advance(0.1)
        second = await accept_into(ours, "a", b"2")
        other = await accept_into(ours, "b", b"3")
        plain = await ours.accepted(b"4", sent=0)
        await clock.advance(60)
        assert await ours.claim() == [(plain[0], 1)], "those of queues are never due"
        found = await ours.store.waiting_in_queues(ours.partition)
        assert found == [("a", 2, 60_100), ("b", 1, 60_000)]
        assert await claim_from(ours, "a", 1) == ([(first[0], 1)], 0)
        assert await claim_from(ours, "a") == ([(second[0], 1)], 0)
        assert await claim_from(ours, "a") == ([], 0)
        assert await claim_from(ours, "nobody") == ([], 0)
        assert await ours.complete(*first, *second, *plain) == [True] * 3
        assert await ours.acknowledge(*other) == [True], "also while it waits"
        await check_clean(ours)


async def test_a_message_of_a_queue_that_failed_waits_there_again(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock, dispatch={"deliveries_max": 4}) as ours:
        (message_id,) = await accept_into(ours, "a", b"1")
        await ours.accepted(*[b"%d" % n for n in range(5)], sent=0)  # older and due
        await claim_from(ours, "a")
        assert await ours.renew(message_id) == ["renewed"]
        await clock.advance(ACK_TIMEOUT_MS / 1000 - 0.001)
        assert await ours.renew(message_id) == ["renewed"], "it is still held"
        await clock.advance(ACK_TIMEOUT_MS / 1000 + 0.001)
        assert await claim_from(ours, "", 0) == ([], 1), "it begins to wait, sent to nobody"
        assert await ours.renew(message_id) == ["lost"]
        assert await claim_from(ours, "a") == ([(message_id, 2)], 0)
        assert await ours.reject(message_id, "broken", delay_ms=100) == "requeued"
        assert (await claim_from(ours, "a"))[0] == [], "not before its delay"
        await clock.advance(0.201)  # the second delay is twice the first
        assert await claim_from(ours, "", 0) == ([], 1)
        assert await claim_from(ours, "a") == ([(message_id, 3)], 0)
        assert await ours.store.return_unsent(ours.partition, ours.term, [message_id])
        assert await claim_from(ours, "", 0) == ([], 1)
        assert await claim_from(ours, "a") == ([(message_id, 3)], 0), "given back: not counted"
        assert await ours.complete(message_id) == [True]


async def test_a_dead_letter_keeps_its_queue(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        (message_id,) = await accept_into(ours, "a", b"1")
        await claim_from(ours, "a")
        assert await ours.reject(message_id, "broken", last=True) == "dead"
        await check_clean(ours)
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert letter.queue == "a"
        assert await ours.store.retry_dead_letters(ours.partition, [letter.entry_id]) == ["retried"]
        assert await ours.claim() == []
        assert await claim_from(ours, "a") == ([(message_id, 1)], 0)


async def test_the_inbox_and_a_full_partition_keep_the_queue(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, dispatch={"pending_messages_max": 1}) as ours:
        (first,) = await accept_into(ours, "a", b"1")
        messages = ours.messages(b"2")
        spilled = await ours.store.accept(
            ours.partition, ours.term, ours.epoch, messages, digest(b"2"), 0, "a"
        )
        assert spilled == (0, 1)
        await ours.complete(first)
        found = await ours.store.accept_inbox(ours.partition, ours.term, 10, 10)
        assert found == (1, [])
        assert await claim_from(ours, "a") == ([(messages[0][0], 1)], 0)
        await ours.complete(messages[0][0])
        await ours.add_to_inbox("payload", b"3", "queue", "no queue")
        assert [payload for _, payload in await ours.accept_inbox()] == [b"3"]


# Workers --------------------------------------------------------------------------------------


async def test_only_the_workers_of_a_queue_get_its_messages() -> None:
    async with (
        scripted_worker(Hello(window=5)) as plain,
        scripted_worker(Hello(window=5, queue="a")) as named,
        pool_harness() as ours,
    ):
        await ours.connect(plain, named)
        assert (ours.pool.free_slots, ours.pool.slots_of("a")) == (5, 5)
        messages = [(b"%036d" % n, b"x") for n in range(8)]
        assert ours.pool.distribute(messages, queue="a") == 5
        assert ours.pool.distribute(messages, queue="b") == 0
        assert ours.pool.free_slots == 5
        assert ours.pool.named_queues == {"a"}


async def test_one_application_serves_several_queues(redis_url: str) -> None:
    async with dispatch_services(redis_url, queues=("emails", "reports")) as ours:
        await ours.add_dispatcher()
        service = worker.build(ours.runtime, app)
        assert isinstance(service, WorkerGroup)
        assert [each.queue for each in service.workers] == ["", "emails", "reports"]
        await service.start()
        try:
            assert set(service.ports) == {"worker", "worker:emails", "worker:reports"}
            for n in range(30):
                queue = ("", "emails", "reports")[n % 3]
                if n % 2:
                    await ours.store.enqueue(b'{"n":%d}' % n, queue=queue)
                else:
                    assert await ours.store.publish(b'{"n":%d}' % n, queue) == 1
            results = await ours.wait_for_results(30)
            wanted = {str(n): ("other", "emails", "reports")[n % 3] for n in range(30)}
            assert {each["n"]: each["by"] for each in results} == wanted

            async def reported() -> bool:
                found = await read_processes(ours.runtime)
                return [e.figures["completed"] for e in found if e.role == "worker"] == [30]

            await ours.wait_until(reported)
        finally:
            await service.stop(5)
        assert await ours.store.named_consumers() == []


async def test_what_no_worker_can_run_waits_and_is_shown(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker()
        service = DispatchService(ours.runtime)
        for n in range(5):
            await ours.store.enqueue(b'{"n":%d}' % n, queue="emails")
        await ours.store.enqueue(b'{"n":"plain"}')

        async def waits() -> bool:
            found = [(each.queue, each.waiting, each.workers) for each in await service.queues()]
            return found == [("emails", 5, 0)]

        await ours.wait_until(waits)
        await ours.wait_until(lambda: _is(ours.result_count(), 1))
        late = Angarium()

        @late.worker("emails")
        async def work(message: dict[str, Any]) -> dict[str, Any]:
            return message

        async with Runtime.open(ours.settings) as runtime:
            other = worker.build(runtime, late)
            await other.start()
            try:
                results = await ours.wait_for_results(6)
                assert Counter(each["n"] for each in results) == Counter(["plain", *"01234"])
                (shown,) = await service.queues()
                assert (shown.waiting, shown.workers) == (0, 1)
            finally:
                await other.stop(5)


async def test_the_seeds_worker_gets_the_unnamed_queue_alone(redis_url: str) -> None:
    """It knows commands 0 and 1, and sends no HELLO."""
    async with RawWorker() as old, dispatch_services(redis_url, queues=("a",)) as ours:
        dispatcher = await ours.add_dispatcher(consumers=(old.address,))
        await ours.wait_until(lambda: dispatcher.workers.free_slots > 0)
        await ours.store.publish(b'{"n":"named"}', "a")
        await ours.store.publish(b'{"n":"plain"}')
        await ours.wait_until(lambda: b"plain" in old.received)
        assert b"named" not in old.received


async def test_retries_of_a_queue_are_those_of_its_function(redis_url: str) -> None:
    async with dispatch_services(redis_url, retry_delay_ms=1) as ours:
        await ours.add_dispatcher()
        service = worker.build(ours.runtime, app)
        await service.start()
        try:
            await ours.store.enqueue(b'{"n":1,"fail":true}', queue="reports")
            await ours.wait_until(lambda: _is(ours.dead(), 1))
            (letter,) = await ours.store.dead_letters(0, 10)
            assert letter.deliveries == 2, "retries=1"
            assert all("no report" in each for each in letter.reasons)
        finally:
            await service.stop(5)


async def test_workers_of_queues_are_processes_like_others(redis_url: str) -> None:
    async with dispatch_processes(redis_url, dispatch={"queues": "emails,reports"}) as ours:
        await ours.add_dispatcher()
        first = await ours.add_worker(NAMED)
        await ours.wait_for_leaders()
        assert set(first.ports) == {"worker", "worker:emails", "worker:reports"}
        for n in range(100):
            await ours.store.enqueue(b'{"n":%d}' % n, queue=("", "emails", "reports")[n % 3])
            if n == 50:
                first.kill()
                await ours.add_worker(NAMED)
        await ours.wait_settled(100)
        assert (await ours.results()).counts == Counter({str(n): 1 for n in range(100)})
        assert ours.workers[-1].terminate() == 0


async def _is(awaited: Any, wanted: int) -> bool:
    return bool(await awaited == wanted)
