"""Dispatchers and workers together, as a user runs them."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from angarium.dispatch import keys, security
from angarium.dispatch.frames import Command, FrameReader, encode, encode_acknowledgements
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.protocol import Hello, encode_hello
from angarium.runtime.errors import SettingInvalid
from tests.dispatch.harness import dispatch_services
from tests.dispatch.scripted_worker import RawWorker
from tests.kit.eventually import eventually


def frames_in(data: bytearray) -> list[tuple[int, bytes]]:
    return FrameReader(1 << 20).feed(bytes(data))


async def test_a_published_message_has_one_result_in_the_stream(any_redis_url: str) -> None:
    async with dispatch_services(any_redis_url) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(*[b'{"n":%d,"deep":{"a":[1]}}' % n for n in range(50)])
        results = await ours.wait_for_results(50)
        assert sorted(int(each["n"]) for each in results) == list(range(50))
        assert {each["consumer_id"] for each in results} == {worker.consumer}
        assert len({each["message_id"] for each in results}) == 50
        assert results[0]["deep"] == '{"a":[1]}'


async def test_a_worker_on_a_wildcard_address_registers_one_that_can_be_dialled(
    any_redis_url: str,
) -> None:
    async with dispatch_services(any_redis_url, token="secret") as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker(worker_host="0.0.0.0")
        assert worker.consumer == f"127.0.0.1:{worker.ports['worker']}"
        await ours.publish(b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1


async def test_the_senders_own_message_id_is_renamed(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker()
        await ours.publish(b'{"message_id":"theirs"}')
        (result,) = await ours.wait_for_results(1)
        assert result["result_message_id"] == "theirs"
        assert len(result["message_id"]) == 36


async def test_messages_go_round_robin_over_workers(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        workers = [await ours.add_worker() for _ in range(3)]
        await ours.wait_until(
            lambda: (
                sum(connection.free_slots > 0 for connection in dispatcher.workers.connections) == 3
            )
        )
        for n in range(30):
            await ours.publish(b'{"n":%d}' % n)
        results = await ours.wait_for_results(30)
        metrics = [sum(r["consumer_id"] == w.consumer for r in results) for w in workers]
        assert metrics == [10, 10, 10]


async def test_identical_payloads_are_separate_messages(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker()
        await ours.publish(*[b'{"n":1}'] * 20)
        assert len(await ours.wait_for_results(20)) == 20


async def test_messages_wait_until_a_worker_starts(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.publish(*[b'{"n":%d}' % n for n in range(40)])
        await ours.wait_until(lambda: _is(ours.pending(), 40))
        status = await ours.store.status(0)
        assert status.oldest_ms > 0
        assert status.dead == 0
        await ours.add_worker()
        results = await ours.wait_for_results(40)
        assert sorted(int(each["n"]) for each in results) == list(range(40))


async def test_a_message_that_timed_out_goes_to_a_different_worker(redis_url: str) -> None:
    async with RawWorker() as silent, dispatch_services(redis_url, ack_timeout_ms=400) as ours:
        dispatcher = await ours.add_dispatcher(consumers=(silent.address,))
        worker = await ours.add_worker()
        await ours.wait_until(
            lambda: (
                sum(connection.free_slots > 0 for connection in dispatcher.workers.connections) == 2
            )
        )
        await ours.publish(*[b'{"n":%d}' % n for n in range(6)])
        results = await ours.wait_for_results(6)
        assert {each["consumer_id"] for each in results} == {worker.consumer}
        sent = [payload[:36] for _, payload in frames_in(silent.received)]
        assert len(sent) == 3
        assert len(set(sent)) == 3, "the silent one got a message back that it had kept"
        assert dispatcher.metrics.redelivered >= 3


async def test_a_third_party_worker_gets_plain_frames_and_acknowledges_on_its_connection(
    redis_url: str,
) -> None:
    async with RawWorker() as raw, dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher(consumers=(raw.address,))
        await ours.publish(b"no JSON at all")
        await ours.wait_until(lambda: len(frames_in(raw.received)) == 1)
        ((command, payload),) = frames_in(raw.received)
        assert command == Command.PROCESS_MESSAGE
        assert payload[36:] == b":no JSON at all"
        assert await ours.pending() == 1
        raw.send(encode_acknowledgements([payload[:36]]))
        await ours.wait_until(lambda: _is(ours.pending(), 0))


async def test_any_dispatchers_ack_port_accepts_an_acknowledgement(any_redis_url: str) -> None:
    async with RawWorker() as raw, dispatch_services(any_redis_url, ack_timeout_ms=30_000) as ours:
        first = await ours.add_dispatcher(consumers=(raw.address,))
        second = await ours.add_dispatcher(consumers=(raw.address,))
        await ours.publish(*[b"m%d" % n for n in range(8)])
        await ours.wait_until(lambda: len(frames_in(raw.received)) == 8)
        ids = [payload[:36] for _, payload in frames_in(raw.received)]
        for dispatcher, part in ((first, ids[:4]), (second, ids[4:])):
            reader, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
            writer.write(encode_acknowledgements(part))
            writer.write(encode_acknowledgements([b"00000000-0000-4000-8000-000000000000"]))
            answer = await asyncio.wait_for(reader.readexactly(6), 30)
            assert answer[1] == Command.NACK_MESSAGE
            writer.close()
        await ours.wait_until(lambda: _is(ours.pending(), 0))
        assert first.metrics.acks_unknown + second.metrics.acks_unknown == 2


@pytest.mark.limit("ack_waiting_max")
async def test_f8_a_flood_of_acknowledgements_is_pushed_back(redis_url: str) -> None:
    """The dispatcher keeps a limited number and stops reading; all of them are answered."""
    count = 3_000
    async with dispatch_services(redis_url, limits={"ack_waiting_max": 100}) as ours:
        dispatcher = await ours.add_dispatcher()
        reader, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
        for message_id in new_ids(count):
            writer.write(encode_acknowledgements([message_id]))
        answers, splitter = 0, FrameReader(1 << 20)
        async with asyncio.timeout(60):
            while answers < count:
                answers += len(splitter.feed(await reader.read(100_000)))
        assert dispatcher.metrics.acks_unknown == count
        assert dispatcher.metrics.acks_paused > 0
        writer.close()


async def test_an_acknowledgement_at_another_dispatcher_frees_the_senders_slot(
    redis_url: str,
) -> None:
    """Many more messages than the window, all acknowledged at the dispatcher that does not lead."""
    async with RawWorker() as raw, dispatch_services(redis_url, ack_timeout_ms=60_000) as ours:
        first = await ours.add_dispatcher(consumers=(raw.address,), worker_window=4)
        await ours.wait_until(lambda: _led(first)() == 1)
        second = await ours.add_dispatcher(consumers=(raw.address,), worker_window=4)
        await ours.publish(*[b"m%d" % n for n in range(40)])
        _, writer = await asyncio.open_connection("127.0.0.1", second.ports["ack"])
        known = 0
        while known < 40:
            await ours.wait_until(partial(_more_frames, raw, known))
            ids = [payload[:36] for _, payload in frames_in(raw.received)]
            writer.write(encode_acknowledgements(ids[known:]))
            known = len(ids)
        writer.close()
        await ours.wait_until(lambda: _is(ours.pending(), 0))
        assert _led(first)() == 1


async def test_a_worker_that_never_reads_does_not_delay_other_workers(redis_url: str) -> None:
    async with RawWorker(reads=False) as stuck, dispatch_services(redis_url) as ours:
        await ours.add_dispatcher(consumers=(stuck.address,), worker_window=100_000)
        await ours.add_worker()
        payload = b'{"n":"%s"}' % (b"x" * 50_000)
        await ours.publish(*[payload] * 300)
        assert len(await ours.wait_for_results(300)) == 300


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
async def test_garbage_gets_an_error_and_is_counted(redis_url: str, garbage: bytes) -> None:
    async with dispatch_services(redis_url) as ours:
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
        assert dispatcher.metrics.protocol_errors == 1
        assert worker.metrics.protocol_errors == 1
        await ours.publish(b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1


async def test_invalid_epoch_markers_are_counted_and_ignored(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        await ours.add_worker()
        for junk in (b"epoch x", b"free 99", b"covered", b"done", b"", b"\xff\x00"):
            await ours.runtime.redis.call("PUBLISH", ours.store.marker_channel, junk)
        await ours.publish(b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1
        assert dispatcher.metrics.protocol_errors == 3
        assert dispatcher.metrics.takeovers == 1


async def test_large_due_messages_are_claimed_in_parts(redis_url: str) -> None:
    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher()
        await ours.publish(*[b'{"n":"%d","x":"%s"}' % (n, b"x" * 200_000) for n in range(80)])
        await ours.wait_until(lambda: _is(ours.pending(), 80))
        await ours.add_worker()
        results = await ours.wait_for_results(80)
        assert sorted(int(each["n"]) for each in results) == list(range(80))


async def test_a_frame_that_a_worker_cuts_is_counted(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        _, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
        writer.write(encode_acknowledgements([b"0" * 36])[:20])
        writer.close()
        await ours.wait_until(lambda: dispatcher.metrics.frames_cut == 1)


async def test_without_the_token_neither_side_accepts_anything(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", 1.0)
    async with RawWorker() as stranger, dispatch_services(redis_url, token="secret") as ours:
        dispatcher = await ours.add_dispatcher(consumers=(stranger.address,))
        worker = await ours.add_worker()
        await ours.publish(*[b'{"n":%d}' % n for n in range(10)])
        assert len(await ours.wait_for_results(10)) == 10
        await ours.wait_until(lambda: dispatcher.metrics.protocol_errors >= 1)
        assert b"PROCESS" not in stranger.received
        assert {command for command, _ in frames_in(stranger.received)} <= {Command.ERROR}
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.ports["worker"])
        writer.write(encode(Command.PROCESS_MESSAGE, b"00000000-0000-4000-8000-000000000000:{}"))
        frames = FrameReader(1 << 20).feed(await asyncio.wait_for(reader.read(), 30))
        assert frames[-1][0] == Command.ERROR
        assert b"token_refused" in frames[-1][1]
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
        writer.write(encode_hello(Hello(consumer_id="w")))
        frames = FrameReader(1 << 20).feed(await asyncio.wait_for(reader.read(), 30))
        assert b"token_refused" in frames[-1][1]
        writer.close()


async def test_worker_connections_use_tls_with_certificates_on_both_sides(
    redis_url: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    for part in issued.cert_chain_pems:
        part.write_to_path(tmp_path / "cert.pem", append=True)
    tls: dict[str, Any] = {
        "tls_certificate": tmp_path / "cert.pem",
        "tls_key": tmp_path / "key.pem",
        "tls_authority": tmp_path / "ca.pem",
    }
    async with dispatch_services(redis_url, partitions=None, **tls) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(*[b'{"n":%d}' % n for n in range(10)])
        assert len(await ours.wait_for_results(10)) == 10
        for port in (dispatcher.ports["ack"], worker.ports["worker"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode_hello(Hello()))
            assert Command.HELLO not in [c for c, _ in _frames_or_none(await reader.read())]
            writer.close()


def test_an_unreadable_certificate_is_an_error_of_its_setting(tmp_path: Path) -> None:
    from angarium.dispatch.security import server_tls
    from angarium.settings import load

    for given in ({"tls_certificate": tmp_path / "none.pem"}, {"tls_authority": tmp_path / "ca"}):
        with pytest.raises(SettingInvalid, match="ANGARIUM_DISPATCH__TLS_"):
            server_tls(load(redis_url="redis://127.0.0.1:1", dispatch=given))


async def test_the_durable_intake_works_without_a_dispatcher(any_redis_url: str) -> None:
    async with dispatch_services(any_redis_url) as ours:
        for n in range(20):
            assert not (await ours.store.enqueue(b'{"n":%d}' % n, f"key {n}")).duplicate
        again = await ours.store.enqueue(b'{"n":0}', "key 0")
        assert again.duplicate
        name = ours.runtime.keyspace.name(keys.MESSAGES_INBOX, 0)
        await ours.runtime.redis.call("XADD", name, "*", "any", '{"n":99}', key=name)
        await ours.add_dispatcher()
        await ours.add_worker()
        results = await ours.wait_for_results(21)
        assert sorted(int(each["n"]) for each in results) == [*range(20), 99]
        assert again.message_id in {each["message_id"] for each in results}


async def test_a_message_too_large_for_a_frame_becomes_a_dead_letter_at_once(
    redis_url: str,
) -> None:
    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(b'"%s"' % (b"x" * (1 << 20)), b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1
        (letter,) = await ours.store.dead_letters(0, 10)
        assert "too large" in letter.reasons[0]
        assert worker.metrics.protocol_errors == 0


async def test_a_full_partition_refuses_or_drops_by_its_policy(redis_url: str) -> None:
    for policy in ("refuse_new", "drop_oldest"):
        async with dispatch_services(
            redis_url, pending_messages_max=10, pending_full=policy
        ) as ours:
            dispatcher = await ours.add_dispatcher()
            await ours.publish(*[b'{"n":%d}' % n for n in range(15)])
            metrics = dispatcher.metrics
            await ours.wait_until(partial(_taken, metrics, 15))
            assert await ours.pending() == 10
            dead = (await ours.store.status(0)).dead
            assert (dispatcher.metrics.refused, dead) == (
                (5, 0) if policy == "refuse_new" else (0, 5)
            )


async def test_what_does_not_fit_into_a_partition_waits_in_the_inbox(redis_url: str) -> None:
    async with dispatch_services(redis_url, pending_messages_max=10) as ours:
        dispatcher = await ours.add_dispatcher()
        await ours.publish(*[b'{"n":%d}' % n for n in range(100)])
        await ours.wait_until(lambda: dispatcher.metrics.spilled == 90)
        status = await ours.store.status(0)
        assert (status.pending, status.inbox) == (10, 90)
        await ours.add_worker()
        results = await ours.wait_for_results(100)
        assert Counter(each["n"] for each in results) == Counter(str(n) for n in range(100))
        assert dispatcher.metrics.refused == 0


@pytest.mark.limit("worker_bytes_max")
async def test_a_worker_gives_back_the_bytes_that_it_has_no_memory_for(redis_url: str) -> None:
    limits = {"worker_bytes_max": 10_000}
    gate = asyncio.Event()

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        await gate.wait()
        return {"n": message["n"]}

    async with dispatch_services(redis_url, limits=limits) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker(wait, options={"concurrency": 1})
        text = "x" * 1_000
        await ours.publish(*[b'{"n":%d,"text":"%s"}' % (n, text.encode()) for n in range(50)])
        await ours.wait_until(lambda: worker.metrics.returned > 0)
        assert worker._queued_bytes <= 10_000
        gate.set()
        results = await ours.wait_for_results(50)
        assert Counter(each["n"] for each in results) == Counter(str(n) for n in range(50))
        assert await ours.dead() == 0


async def test_partitions_are_shared_and_move_when_a_dispatcher_stops(
    redis_url: str,
) -> None:
    async with dispatch_services(redis_url, partitions=4) as ours:
        first = await ours.add_dispatcher()
        led = _led(first)
        await ours.wait_until(lambda: led() == 4)
        second = await ours.add_dispatcher()
        await ours.wait_until(lambda: (_led(first)(), _led(second)()) == (2, 2))
        await ours.add_worker()
        await ours.publish(*[b'{"n":%d}' % n for n in range(100)])
        await ours.wait_for_results(100)
        await first.stop(10)
        await ours.wait_until(lambda: _led(second)() == 4)
        await ours.publish(*[b'{"n":%d}' % n for n in range(100, 200)])
        results = await ours.wait_for_results(200)
        assert sorted(int(each["n"]) for each in results) == list(range(200))


async def test_a_dispatcher_that_stops_hands_over_without_a_gap(redis_url: str) -> None:
    async with dispatch_services(redis_url, lock_ms=60_000) as ours:
        first = await ours.add_dispatcher()
        await ours.wait_until(lambda: _led(first)() == 1)
        second = await ours.add_dispatcher()
        await ours.add_worker()
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(_publish_for_a_while(ours))
            await asyncio.sleep(0.1)
            await first.stop(10)
            await ours.wait_until(lambda: _led(second)() == 1)
        count = await publishing
        results = await ours.wait_for_results(count)
        assert sorted(int(each["n"]) for each in results) == list(range(count))


async def test_a_leader_keeps_its_workers_after_an_error(redis_url: str) -> None:
    async with dispatch_services(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(b'{"n":1}')
        await ours.wait_for_results(1)
        await ours.runtime.redis.call("SCRIPT", "FLUSH")
        await ours.runtime.redis.call("CLIENT", "KILL", "TYPE", "pubsub")
        await ours.runtime.redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        async def flows() -> bool:
            await ours.publish(b'{"n":2}')
            return len(await ours.results()) > 1

        await eventually(flows, deadline_s=60)
        assert dispatcher.workers.free_slots > 0
        assert worker.ready


def _more_frames(raw: RawWorker, known: int) -> bool:
    return len(frames_in(raw.received)) > known


def _taken(metrics: DispatcherMetrics, count: int) -> bool:
    return metrics.accepted + metrics.refused == count


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
