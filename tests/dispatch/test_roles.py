"""Dispatcher and worker together: what a user of the module relies on, and what must not happen."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from angarium.dispatch import security
from angarium.dispatch.counts import DispatcherCounts
from angarium.dispatch.frames import Command, FrameReader, encode, encode_acknowledgements
from angarium.dispatch.protocol import Greeting, hello
from angarium.runtime.errors import SettingInvalid
from tests.dispatch.hall import RawWorker, hall
from tests.kit.eventually import eventually


def frames_in(data: bytearray) -> list[tuple[int, bytes]]:
    return FrameReader(1 << 20).feed(bytes(data))


async def test_what_is_published_stands_in_the_stream_once(any_redis_url: str) -> None:
    async with hall(any_redis_url) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(*[b'{"n":%d,"deep":{"a":[1]}}' % n for n in range(50)])
        results = await ours.processed(50)
        assert sorted(int(each["n"]) for each in results) == list(range(50))
        assert {each["consumer_id"] for each in results} == {worker.consumer}
        assert len({each["message_id"] for each in results}) == 50
        assert results[0]["deep"] == '{"a":[1]}'


async def test_a_worker_on_all_addresses_tells_one_that_can_be_dialled(any_redis_url: str) -> None:
    async with hall(any_redis_url) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker(worker_host="0.0.0.0")
        assert worker.consumer == f"127.0.0.1:{worker.ports['worker']}"
        await ours.publish(b'{"n":1}')
        assert len(await ours.processed(1)) == 1


async def test_a_senders_own_message_id_moves_aside(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker()
        await ours.publish(b'{"message_id":"theirs"}')
        (result,) = await ours.processed(1)
        assert result["result_message_id"] == "theirs"
        assert len(result["message_id"]) == 36


async def test_messages_go_round_robin_over_workers(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        workers = [await ours.add_worker() for _ in range(3)]
        await ours.until(lambda: sum(link.space > 0 for link in dispatcher.links.links) == 3)
        for n in range(30):
            await ours.publish(b'{"n":%d}' % n)
        results = await ours.processed(30)
        counts = [sum(r["consumer_id"] == w.consumer for r in results) for w in workers]
        assert counts == [10, 10, 10]


async def test_identical_payloads_are_messages_of_their_own(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker()
        await ours.publish(*[b'{"n":1}'] * 20)
        assert len(await ours.processed(20)) == 20


async def test_messages_without_a_worker_wait_and_flow_when_one_comes(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.publish(*[b'{"n":%d}' % n for n in range(40)])
        await ours.until(lambda: _is(ours.pending(), 40))
        status = await ours.store.status(0)
        assert status.oldest_ms > 0
        assert status.dead == 0
        await ours.add_worker()
        results = await ours.processed(40)
        assert sorted(int(each["n"]) for each in results) == list(range(40))


async def test_no_acknowledgement_means_a_different_worker(redis_url: str) -> None:
    async with RawWorker() as silent, hall(redis_url, ack_timeout_ms=400) as ours:
        dispatcher = await ours.add_dispatcher(consumers=(silent.address,))
        worker = await ours.add_worker()
        await ours.until(lambda: sum(link.space > 0 for link in dispatcher.links.links) == 2)
        await ours.publish(*[b'{"n":%d}' % n for n in range(6)])
        results = await ours.processed(6)
        assert {each["consumer_id"] for each in results} == {worker.consumer}
        sent = [payload[:36] for _, payload in frames_in(silent.received)]
        assert len(sent) == 3
        assert len(set(sent)) == 3, "the silent one got a message back that it had kept"
        assert dispatcher.counts.redelivered >= 3


async def test_a_worker_of_another_make_gets_plain_frames_and_acknowledges_on_its_connection(
    redis_url: str,
) -> None:
    async with RawWorker() as raw, hall(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher(consumers=(raw.address,))
        await ours.publish(b"no JSON at all")
        await ours.until(lambda: len(frames_in(raw.received)) == 1)
        ((command, payload),) = frames_in(raw.received)
        assert command == Command.PROCESS_MESSAGE
        assert payload[36:] == b":no JSON at all"
        assert await ours.pending() == 1
        raw.send(encode_acknowledgements([payload[:36]]))
        await ours.until(lambda: _is(ours.pending(), 0))


async def test_an_acknowledgement_may_come_to_any_dispatchers_port(any_redis_url: str) -> None:
    async with RawWorker() as raw, hall(any_redis_url, ack_timeout_ms=30_000) as ours:
        first = await ours.add_dispatcher(consumers=(raw.address,))
        second = await ours.add_dispatcher(consumers=(raw.address,))
        await ours.publish(*[b"m%d" % n for n in range(8)])
        await ours.until(lambda: len(frames_in(raw.received)) == 8)
        ids = [payload[:36] for _, payload in frames_in(raw.received)]
        for dispatcher, part in ((first, ids[:4]), (second, ids[4:])):
            reader, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
            writer.write(encode_acknowledgements(part))
            writer.write(encode_acknowledgements([b"00000000-0000-4000-8000-000000000000"]))
            answer = await asyncio.wait_for(reader.readexactly(6), 30)
            assert answer[1] == Command.NACK_MESSAGE
            writer.close()
        await ours.until(lambda: _is(ours.pending(), 0))
        assert first.counts.acks_unknown + second.counts.acks_unknown == 2


async def test_an_acknowledgement_elsewhere_opens_the_senders_window(redis_url: str) -> None:
    """Far more messages than the window, all acknowledged at the dispatcher that does not lead."""
    async with RawWorker() as raw, hall(redis_url, ack_timeout_ms=60_000) as ours:
        first = await ours.add_dispatcher(consumers=(raw.address,), worker_window=4)
        await ours.until(lambda: _led(first)() == 1)
        second = await ours.add_dispatcher(consumers=(raw.address,), worker_window=4)
        await ours.publish(*[b"m%d" % n for n in range(40)])
        _, writer = await asyncio.open_connection("127.0.0.1", second.ports["ack"])
        known = 0
        while known < 40:
            await ours.until(partial(_more_frames, raw, known))
            ids = [payload[:36] for _, payload in frames_in(raw.received)]
            writer.write(encode_acknowledgements(ids[known:]))
            known = len(ids)
        writer.close()
        await ours.until(lambda: _is(ours.pending(), 0))
        assert _led(first)() == 1


async def test_what_is_no_json_reaches_the_worker_and_ends_among_the_dead(redis_url: str) -> None:
    async with hall(redis_url, deliveries_max=3, retry_delay_ms=10) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(b"{no json")
        await ours.until(lambda: _is(ours.dead(), 1))
        (letter,) = await ours.store.dead_letters(0, 10)
        assert letter.payload == b"{no json"
        assert letter.deliveries == 3
        assert len(letter.reasons) == 3
        assert all(worker.consumer in reason for reason in letter.reasons)
        assert await ours.pending() == 0
        await ours.publish(b'{"n":1}')
        assert len(await ours.processed(1)) == 1


async def test_a_function_that_fails_is_tried_again_elsewhere(redis_url: str) -> None:
    failures: list[str] = []

    async def moody(message: dict[str, Any]) -> dict[str, Any]:
        if not failures:
            failures.append("once")
            raise RuntimeError("not today")
        return message

    async with hall(redis_url, retry_delay_ms=10) as ours:
        dispatcher = await ours.add_dispatcher()
        await ours.add_worker(moody)
        await ours.publish(b'{"n":1}')
        assert len(await ours.processed(1)) == 1
        assert dispatcher.counts.rejected == 1


@pytest.mark.parametrize("result", ["text", 3, [1], {1: 2}, {str(n): n for n in range(1_001)}])
async def test_a_function_that_returns_no_dict_fails_its_message(
    redis_url: str, result: Any
) -> None:
    async with hall(redis_url, deliveries_max=1) as ours:
        await ours.add_dispatcher()

        async def wrong(_: Any) -> Any:
            return result

        await ours.add_worker(wrong)
        await ours.publish(b'{"n":1}')
        await ours.until(lambda: _is(ours.dead(), 1))
        (letter,) = await ours.store.dead_letters(0, 10)
        assert "TypeError" in letter.reasons[0] or "ValueError" in letter.reasons[0]


async def test_a_stream_that_is_none_fails_messages_and_not_the_worker(redis_url: str) -> None:
    async with hall(redis_url, retry_delay_ms=10, deliveries_max=100) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        name = ours.store.stream_name(0)
        await ours.runtime.redis.call("SET", name, "in the way", key=name)
        await ours.publish(b'{"n":1}')
        await ours.until(lambda: worker.counts.failed >= 1)
        await ours.runtime.redis.call("DEL", name, key=name)
        assert len(await ours.processed(1)) == 1


async def test_large_results_travel_in_batches_that_redis_can_take(redis_url: str) -> None:
    async def grow(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "text": "x" * 600_000}

    async with hall(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher()
        await ours.add_worker(grow)
        await ours.publish(*[b'{"n":%d}' % n for n in range(20)])
        assert len(await ours.processed(20)) == 20


async def test_plain_functions_run_in_threads_side_by_side(redis_url: str) -> None:
    together = threading.Barrier(4, timeout=30)

    def meet(message: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        return message

    async with hall(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher()
        await ours.add_worker(meet, options={"concurrency": 4})
        await ours.publish(*[b'{"n":%d}' % n for n in range(8)])
        assert len(await ours.processed(8)) == 8


async def test_a_worker_never_gets_more_than_its_window(redis_url: str) -> None:
    gate = asyncio.Event()
    held: list[int] = []

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        held.append(message["n"])
        await gate.wait()
        return message

    async with hall(redis_url, ack_timeout_ms=30_000) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker(wait, options={"window": 5})
        await ours.publish(*[b'{"n":%d}' % n for n in range(20)])
        await ours.until(lambda: len(held) == 5)
        await ours.until(lambda: dispatcher.counts.accepted == 20)
        assert worker.counts.received == 5
        gate.set()
        assert len(await ours.processed(20)) == 20


async def test_a_worker_that_stops_finishes_what_it_began_and_gives_back_the_rest(
    redis_url: str,
) -> None:
    gate = asyncio.Event()
    began: list[int] = []

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        began.append(message["n"])
        await gate.wait()
        return message

    async with hall(redis_url, ack_timeout_ms=30_000) as ours:
        dispatcher = await ours.add_dispatcher()
        first = await ours.add_worker(wait, options={"concurrency": 2})
        await ours.publish(*[b'{"n":%d}' % n for n in range(10)])
        await ours.until(lambda: first.counts.received == 10 and len(began) == 2)
        await first.quiet()
        second = await ours.add_worker()
        await ours.until(lambda: _is(ours.result_count(), 8))
        gate.set()
        await first.stop(10)
        results = await ours.processed(10)
        assert len(results) == 10
        assert sum(each["consumer_id"] == second.consumer for each in results) == 8
        assert first.consumer not in await ours.store.consumers()
        assert dispatcher.counts.dead == 0


async def test_a_worker_whose_connection_breaks_lives_on_and_its_result_counts(
    redis_url: str,
) -> None:
    gate = asyncio.Event()
    calls: list[int] = []

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        calls.append(message["n"])
        await gate.wait()
        return message

    async with hall(redis_url, ack_timeout_ms=30_000) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker(wait)
        await ours.publish(b'{"n":1}')
        await ours.until(lambda: calls == [1])
        for link in dispatcher.links.links:
            link.close()
        gate.set()
        assert len(await ours.processed(1)) == 1
        await ours.publish(b'{"n":2}')
        results = await ours.processed(2)
        assert sorted(each["n"] for each in results) == ["1", "2"]
        assert worker.counts.completed == 2


async def test_a_worker_that_never_reads_keeps_nobody_else_waiting(redis_url: str) -> None:
    async with RawWorker(reads=False) as stuck, hall(redis_url) as ours:
        await ours.add_dispatcher(consumers=(stuck.address,), worker_window=100_000)
        await ours.add_worker()
        payload = b'{"n":"%s"}' % (b"x" * 50_000)
        await ours.publish(*[payload] * 300)
        assert len(await ours.processed(300)) == 300


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x02\x00\x00\x00\x00\x00",
        b"\x01\x63\x00\x00\x00\x00",
        b"\x01\x01\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        encode(Command.ACK_MESSAGE, b"not an id"),
        encode(Command.HELLO, b"{not json"),
        encode(Command.PROCESS_MESSAGE, b"x" * 40),
    ],
)
async def test_garbage_is_answered_counted_and_survived(redis_url: str, garbage: bytes) -> None:
    async with hall(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker()
        for port in (dispatcher.ports["ack"], worker.ports["worker"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            at_worker = port == worker.ports["worker"]
            if at_worker and garbage[1] in (Command.PROCESS_MESSAGE,):
                garbage = garbage[:6] + b"short" + garbage[11:]
            writer.write(garbage)
            answer = await asyncio.wait_for(reader.read(), 30)
            frames = FrameReader(1 << 20).feed(answer)
            assert frames[-1][0] == Command.ERROR
            writer.close()
        assert dispatcher.counts.protocol_errors == 1
        assert worker.counts.protocol_errors == 1
        await ours.publish(b'{"n":1}')
        assert len(await ours.processed(1)) == 1


async def test_junk_among_the_marks_is_counted_and_survived(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        await ours.add_worker()
        for junk in (b"epoch x", b"free 99", b"covered", b"done", b"", b"\xff\x00"):
            await ours.runtime.redis.call("PUBLISH", ours.store.marks, junk)
        await ours.publish(b'{"n":1}')
        assert len(await ours.processed(1)) == 1
        assert dispatcher.counts.protocol_errors == 3
        assert dispatcher.counts.takeovers == 1


async def test_large_messages_that_wait_are_handed_out_in_portions(redis_url: str) -> None:
    async with hall(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher()
        await ours.publish(*[b'{"n":"%d","x":"%s"}' % (n, b"x" * 200_000) for n in range(80)])
        await ours.until(lambda: _is(ours.pending(), 80))
        await ours.add_worker()
        results = await ours.processed(80)
        assert sorted(int(each["n"]) for each in results) == list(range(80))


async def test_a_frame_cut_off_is_counted(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        _, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
        writer.write(encode_acknowledgements([b"0" * 36])[:20])
        writer.close()
        await ours.until(lambda: dispatcher.counts.frames_cut == 1)


async def test_without_the_token_neither_side_takes_anything(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", 1.0)
    async with RawWorker() as stranger, hall(redis_url, token="secret") as ours:
        dispatcher = await ours.add_dispatcher(consumers=(stranger.address,))
        worker = await ours.add_worker()
        await ours.publish(*[b'{"n":%d}' % n for n in range(10)])
        assert len(await ours.processed(10)) == 10
        await ours.until(lambda: dispatcher.counts.protocol_errors >= 1)
        assert b"PROCESS" not in stranger.received
        assert {command for command, _ in frames_in(stranger.received)} <= {Command.ERROR}
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.ports["worker"])
        writer.write(encode(Command.PROCESS_MESSAGE, b"00000000-0000-4000-8000-000000000000:{}"))
        frames = FrameReader(1 << 20).feed(await asyncio.wait_for(reader.read(), 30))
        assert frames[-1][0] == Command.ERROR
        assert b"token_refused" in frames[-1][1]
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
        writer.write(hello(Greeting(consumer_id="w")))
        frames = FrameReader(1 << 20).feed(await asyncio.wait_for(reader.read(), 30))
        assert b"token_refused" in frames[-1][1]
        writer.close()


async def test_worker_connections_can_be_encrypted_both_ways(
    redis_url: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    for part in issued.cert_chain_pems:
        part.write_to_path(tmp_path / "cert.pem", append=True)
    tls = {
        "tls_certificate": tmp_path / "cert.pem",
        "tls_key": tmp_path / "key.pem",
        "tls_authority": tmp_path / "ca.pem",
    }
    async with hall(redis_url, partitions=None, **tls) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(*[b'{"n":%d}' % n for n in range(10)])
        assert len(await ours.processed(10)) == 10
        for port in (dispatcher.ports["ack"], worker.ports["worker"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(hello(Greeting()))
            assert Command.HELLO not in [c for c, _ in _frames_or_none(await reader.read())]
            writer.close()


def test_a_certificate_that_cannot_be_read_is_an_error_of_its_setting(tmp_path: Path) -> None:
    from angarium.dispatch.security import server_tls
    from angarium.runtime.settings import load

    for given in ({"tls_certificate": tmp_path / "none.pem"}, {"tls_authority": tmp_path / "ca"}):
        with pytest.raises(SettingInvalid, match="ANGARIUM_DISPATCH__TLS_"):
            server_tls(load(redis_url="redis://127.0.0.1:1", dispatch=given))


async def test_the_durable_intake_needs_no_dispatcher_to_be_there(any_redis_url: str) -> None:
    async with hall(any_redis_url) as ours:
        for n in range(20):
            assert not (await ours.store.enqueue(b'{"n":%d}' % n, f"key {n}")).duplicate
        again = await ours.store.enqueue(b'{"n":0}', "key 0")
        assert again.duplicate
        name = ours.store.inbox_name(0)
        await ours.runtime.redis.call("XADD", name, "*", "any", '{"n":99}', key=name)
        await ours.add_dispatcher()
        await ours.add_worker()
        results = await ours.processed(21)
        assert sorted(int(each["n"]) for each in results) == [*range(20), 99]
        assert again.message_id in {each["message_id"] for each in results}


async def test_a_message_no_frame_can_carry_is_a_dead_letter_at_once(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(b'"%s"' % (b"x" * (1 << 20)), b'{"n":1}')
        assert len(await ours.processed(1)) == 1
        (letter,) = await ours.store.dead_letters(0, 10)
        assert "too large" in letter.reasons[0]
        assert worker.counts.protocol_errors == 0


async def test_a_full_partition_refuses_or_drops_as_the_policy_says(redis_url: str) -> None:
    for policy, kept in (("refuse_new", 10), ("drop_oldest", 10)):
        async with hall(redis_url, pending_messages_max=10, pending_full=policy) as ours:
            dispatcher = await ours.add_dispatcher()
            await ours.publish(*[b'{"n":%d}' % n for n in range(15)])
            counts = dispatcher.counts
            await ours.until(partial(_taken, counts, 15))
            assert await ours.pending() == kept
            dead = (await ours.store.status(0)).dead
            assert (dispatcher.counts.refused, dead) == (
                (5, 0) if policy == "refuse_new" else (0, 5)
            )


async def test_partitions_are_shared_out_and_move_when_a_dispatcher_leaves(
    redis_url: str,
) -> None:
    async with hall(redis_url, partitions=4) as ours:
        first = await ours.add_dispatcher()
        led = _led(first)
        await ours.until(lambda: led() == 4)
        second = await ours.add_dispatcher()
        await ours.until(lambda: (_led(first)(), _led(second)()) == (2, 2))
        await ours.add_worker()
        await ours.publish(*[b'{"n":%d}' % n for n in range(100)])
        await ours.processed(100)
        await first.stop(10)
        await ours.until(lambda: _led(second)() == 4)
        await ours.publish(*[b'{"n":%d}' % n for n in range(100, 200)])
        results = await ours.processed(200)
        assert sorted(int(each["n"]) for each in results) == list(range(200))


async def test_a_dispatcher_that_leaves_hands_over_without_a_gap(redis_url: str) -> None:
    async with hall(redis_url, lock_ms=60_000) as ours:
        first = await ours.add_dispatcher()
        await ours.until(lambda: _led(first)() == 1)
        second = await ours.add_dispatcher()
        await ours.add_worker()
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(_publish_for_a_while(ours))
            await asyncio.sleep(0.1)
            await first.stop(10)
            await ours.until(lambda: _led(second)() == 1)
        count = await publishing
        results = await ours.processed(count)
        assert sorted(int(each["n"]) for each in results) == list(range(count))


async def test_a_leader_keeps_its_workers_through_an_error(redis_url: str) -> None:
    async with hall(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(b'{"n":1}')
        await ours.processed(1)
        await ours.runtime.redis.call("SCRIPT", "FLUSH")
        await ours.runtime.redis.call("CLIENT", "KILL", "TYPE", "pubsub")
        await ours.runtime.redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        async def flows() -> bool:
            await ours.publish(b'{"n":2}')
            return len(await ours.results()) > 1

        await eventually(flows, deadline_s=60)
        assert dispatcher.links.space > 0
        assert worker.ready


def _more_frames(raw: RawWorker, known: int) -> bool:
    return len(frames_in(raw.received)) > known


def _taken(counts: DispatcherCounts, count: int) -> bool:
    return counts.accepted + counts.refused == count


async def _publish_for_a_while(ours: Any) -> int:
    count = 0
    for _ in range(60):
        await ours.publish(*[b'{"n":%d}' % n for n in range(count, count + 5)])
        count += 5
        await asyncio.sleep(0.01)
    return count


def _led(dispatcher: Any) -> Any:
    return lambda: sum(each.leading for each in dispatcher.partitions)


async def _is(value: Any, expected: int) -> bool:
    return bool(await value == expected)


def _frames_or_none(data: bytes) -> list[tuple[int, bytes]]:
    return FrameReader(1 << 20).feed(data)
