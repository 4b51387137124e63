"""A dispatcher's connection to a worker over real sockets: handshake, heartbeats, errors."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from angarium.dispatch import security
from angarium.dispatch.frames import Command, encode, encode_messages
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.protocol import (
    Hello,
    RejectionReceived,
    encode_heartbeat,
    encode_hello,
    encode_rejection,
)
from angarium.dispatch.worker_connection import WRITE_BUFFER_BYTES_MAX
from angarium.runtime.log import LINES_FIRST
from tests.dispatch.scripted_worker import (
    DEADLINE_S,
    ScriptedWorker,
    arrived,
    connection_options,
    messages_of,
    one_more_beat,
    pool_harness,
    scripted_worker,
    worker,
)
from tests.kit.eventually import eventually
from tests.kit.tcp_server import tcp_server

# Handshake ----------------------------------------------------------------------------------


async def test_hello_sets_name_and_window_and_gets_a_hello_in_reply() -> None:
    async with (
        scripted_worker(worker(4, "w-7")) as a,
        pool_harness(connection_options(name="north")) as ours,
    ):
        (connection,) = await ours.connect(a)
        assert (connection.consumer, connection.completes, connection.free_slots) == (
            "w-7",
            True,
            4,
        )
        await eventually(lambda: a.frames, DEADLINE_S)
        assert a.frames[0] == (Command.HELLO, b'{"consumer_id":"north"}')


async def test_a_third_party_worker_gets_only_messages() -> None:
    async with scripted_worker() as a, pool_harness(connection_options(window=9)) as ours:
        (connection,) = await ours.connect(a)
        assert (connection.consumer, connection.completes, connection.free_slots) == (
            a.address,
            False,
            9,
        )
        sent = messages_of(2, b"\xff\x00 no JSON")
        ours.pool.distribute(sent)
        await eventually(lambda: a.messages == sent, DEADLINE_S)
        a.write(encode(Command.ACK_MESSAGE, sent[0][0].upper()))
        a.write(encode_rejection(sent[1][0], "can't read it"))
        await eventually(lambda: ours.events.rejections, DEADLINE_S)
        assert ours.events.acks == [sent[0][0]]
        assert ours.events.rejections == [RejectionReceived(sent[1][0], "can't read it")]
        assert [command for command, _ in a.frames] == [Command.PROCESS_MESSAGE] * 2


async def test_with_a_token_only_workers_that_prove_it_get_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", 0.2)
    async with (
        scripted_worker(Hello(consumer_id="good", window=1), token="s3cret") as a,
        scripted_worker(Hello(window=1), token="guess") as b,
        scripted_worker(Hello(window=1)) as without,
        scripted_worker(first=encode(Command.HELLO, b'{"window":1,"token":"s3cret"}')) as old,
        pool_harness(connection_options(token="s3cret")) as ours,
        scripted_worker() as silent,
    ):
        strangers = (b, without, old, silent)
        ours.connect_to(a.address, *(each.address for each in strangers))
        await ours.wait_open(a)
        for each in strangers:
            error = await eventually(partial(received_error, each), DEADLINE_S)
            assert error.startswith(b"token_refused")
            assert not each.messages
        assert ours.pool.free_slots == 1
        sent = [payload for each in (a, *strangers) for _, payload in each.frames]
        assert not any(b"s3cret" in payload for payload in sent)


def received_error(peer: ScriptedWorker) -> bytes:
    error = [payload for command, payload in peer.frames if command == Command.ERROR]
    return error[0] if error else b""


async def test_a_worker_that_sends_hello_and_no_proof_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", 0.2)
    challenge = encode(Command.HELLO, b'{"window":9,"nonce":"%s"}' % (b"0" * 64))
    async with (
        scripted_worker(first=challenge) as a,
        pool_harness(connection_options(token="s3cret")) as ours,
    ):
        ours.connect_to(a.address)
        error = await eventually(lambda: received_error(a), DEADLINE_S)
        assert b"no proof" in error
        # The worker received our HELLO and our proof, and nothing else.
        assert [command for command, _ in a.frames[:3]] == [
            Command.HELLO,
            Command.PROOF,
            Command.ERROR,
        ]
        assert ours.pool.free_slots == 0


async def test_a_dispatcher_without_a_token_refuses_a_worker_with_one() -> None:
    async with (
        scripted_worker(Hello(window=1), token="s3cret") as a,
        pool_harness(connection_options()) as ours,
    ):
        ours.connect_to(a.address)
        error = await eventually(lambda: received_error(a), DEADLINE_S)
        assert error.startswith(b"token_refused")
        assert b"no token is set" in error
        assert not a.messages


# Lost connections and heartbeats -------------------------------------------------------------


async def test_a_lost_connection_reports_its_messages_and_is_dialled_again() -> None:
    async with scripted_worker(worker(10)) as a, pool_harness() as ours:
        await ours.connect(a)
        sent = messages_of(3)
        ours.pool.distribute(sent)
        await arrived([a], 3)
        a.acknowledge(sent[1][0])
        await eventually(lambda: ours.events.acks, DEADLINE_S)
        a.hang_up()
        await eventually(lambda: ours.events.losses, DEADLINE_S)
        assert ours.events.losses == [[sent[0][0], sent[2][0]]]
        connection = await ours.wait_open(a)
        assert (connection.free_slots, connection.unacknowledged) == (10, {})


async def test_a_worker_that_starts_late_is_connected() -> None:
    async with pool_harness() as ours:
        async with scripted_worker(worker()) as a:
            address = a.address
        ours.connect_to(address)
        async with scripted_worker(worker(), port=int(address.rpartition(":")[2])) as a:
            await ours.wait_open(a)


async def test_garbage_gets_an_error_is_counted_and_ends_the_connection() -> None:
    async with (
        scripted_worker(worker(), first=b"HTTP/1.1 400 Bad Request\r\n") as a,
        pool_harness() as ours,
    ):
        ours.connect_to(a.address)
        await eventually(lambda: ours.metrics.protocol_errors, DEADLINE_S)
        await eventually(lambda: any(command == 5 for command, _ in a.frames), DEADLINE_S)
        error = next(payload for command, payload in a.frames if command == 5)
        assert error.startswith(b"version_unknown")
        await eventually(lambda: len(a.connections) > 1, DEADLINE_S)


@pytest.mark.parametrize(
    "data",
    [
        encode_messages([(new_ids(1)[0], b"{}")]),
        encode(Command.ACK_MESSAGE, b"nonsense"),
        b"\x01\x63\x00\x00\x00\x00",
        b"\x01\x01\xff\xff\xff\xff",
    ],
    ids=["a message", "an acknowledgement of nonsense", "an unknown command", "an endless frame"],
)
async def test_a_broken_worker_does_not_affect_other_workers(data: bytes) -> None:
    async with (
        scripted_worker(worker(), first=data) as bad,
        scripted_worker(worker(50)) as good,
        pool_harness() as ours,
    ):
        ours.connect_to(bad.address, good.address)
        await ours.wait_open(good)
        await eventually(lambda: ours.metrics.protocol_errors >= 2, DEADLINE_S)
        sent = messages_of(3)
        assert ours.pool.distribute(sent) == 3
        await eventually(
            lambda: len(good.messages) + sum(map(len, ours.events.losses)) >= 3, DEADLINE_S
        )


async def test_a_cut_frame_is_counted() -> None:
    async with scripted_worker(worker()) as a, pool_harness() as ours:
        await ours.connect(a)
        a.write(encode(Command.ACK_MESSAGE, new_ids(1)[0])[:-1])
        a.write(b"")
        connection = a.connections[0].transport
        assert connection is not None
        connection.close()
        await eventually(lambda: ours.metrics.frames_cut == 1, DEADLINE_S)
        assert ours.events.acks == []


async def test_a_worker_that_sent_hello_and_falls_silent_is_disconnected() -> None:
    async with (
        scripted_worker(worker()) as a,
        pool_harness(connection_options(heartbeat_s=0.05)) as ours,
    ):
        (connection,) = await ours.connect(a)
        ours.pool.distribute(messages_of(1))
        await eventually(lambda: ours.events.losses, DEADLINE_S)
        assert len(ours.events.losses[0]) == 1
        assert (Command.HEARTBEAT, b"") in a.frames
        assert connection.free_slots == 0


async def test_a_worker_that_sends_heartbeats_stays_connected() -> None:
    async with (
        scripted_worker(worker()) as a,
        pool_harness(connection_options(heartbeat_s=0.05)) as ours,
    ):
        await ours.connect(a)
        for _ in range(8):
            a.write(encode_heartbeat())
            await one_more_beat(a)
        assert len(a.connections) == 1


async def test_a_pause_of_the_dispatcher_does_not_count_as_silence_of_a_worker() -> None:
    async with (
        scripted_worker(worker()) as a,
        pool_harness(connection_options(heartbeat_s=0.05)) as ours,
    ):
        await ours.connect(a)
        a.write(encode_heartbeat())
        time.sleep(0.5)  # the process is paused, as by SIGSTOP
        for _ in range(3):
            a.write(encode_heartbeat())
            await one_more_beat(a)
        assert len(a.connections) == 1
        assert ours.events.losses == []


async def test_a_worker_that_does_not_read_gets_nothing_until_it_reads() -> None:
    async with (
        scripted_worker(worker(10_000), reads=False) as stuck,
        scripted_worker(worker(10_000)) as good,
        pool_harness() as ours,
    ):
        full, free = await ours.connect(stuck, good)
        payload = b"x" * (1024 * 1024)
        for _ in range(WRITE_BUFFER_BYTES_MAX // len(payload) + 8):
            full.send([(new_ids(1)[0], payload)], {})
        await eventually(lambda: full.free_slots == 0, DEADLINE_S)
        sent = messages_of(20)
        assert ours.pool.distribute(sent) == 20
        await eventually(lambda: good.messages == sent, DEADLINE_S)
        assert free.free_slots == 10_000 - 20
        (connection,) = stuck.connections
        assert connection.transport is not None
        connection.transport.resume_reading()
        await eventually(lambda: full.free_slots > 0, DEADLINE_S)


async def test_a_second_hello_sets_the_window_again() -> None:
    async with scripted_worker(worker(2)) as a, pool_harness() as ours:
        (connection,) = await ours.connect(a)
        ours.pool.distribute(messages_of(2))
        a.write(encode_hello(worker(5, "renamed")))
        await eventually(lambda: connection.free_slots == 3, DEADLINE_S)
        assert connection.consumer == "renamed"
        assert sum(command == Command.HELLO for command, _ in a.frames) <= 1


async def test_a_worker_that_disconnects_before_its_proof_is_logged_a_few_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with (
        tcp_server(hang_up) as port,
        pool_harness(connection_options(token="s3cret")) as ours,
    ):
        address = f"127.0.0.1:{port}"
        ours.connect_to(address)
        await eventually(lambda: len(ours.events.losses) > LINES_FIRST + 1, DEADLINE_S)
        lines = [record.getMessage() for record in caplog.records if address in record.getMessage()]
        assert len(lines) == LINES_FIRST
        assert all("before a proof" in line for line in lines)
