"""F63: the token that dispatchers and workers share never travels, whoever asks for it.

Real processes; the stranger is a socket that knows the protocol page and not the token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.roles import RoleProcess
from tests.kit.tcp_server import tcp_server

DEADLINE_S = 60.0
TOKEN = "s3cret-between-dispatchers-and-workers"
PROCESS_MESSAGE, ACK_MESSAGE, HELLO, ERROR, PROOF = 0, 1, 3, 5, 6
FORGED_ID = b"00000000-0000-4000-8000-000000000000"
NONCE = "0123456789abcdef" * 4
Frame = tuple[int, bytes]


def frame(command: int, payload: bytes = b"") -> bytes:
    return bytes([1, command]) + len(payload).to_bytes(4, "big") + payload


def encode_hello(**members: object) -> bytes:
    return frame(HELLO, json.dumps(members).encode())


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next one; None when the other side has closed."""
    try:
        header = await reader.readexactly(6)
        return header[1], await reader.readexactly(int.from_bytes(header[2:], "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def read_until(reader: asyncio.StreamReader, last: int) -> list[Frame]:
    """Frames up to the first of that command, or to the end."""
    found: list[Frame] = []
    async with asyncio.timeout(DEADLINE_S):
        while (each := await read_frame(reader)) is not None:
            found.append(each)
            if each[0] == last:
                break
    return found


async def accepted(processes: DispatchProcesses) -> None:
    """The one message that was published waits in Redis, and nobody has worked on it."""

    async def waits() -> bool:
        status = await processes.store.status(0)
        return (status.pending, status.processed, status.dead) == (1, 0, 0)

    await eventually(waits, DEADLINE_S)


class Tap:
    """Stands on the way to a worker's port and keeps all that passes."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.to_worker: list[bytearray] = []
        self.to_dispatcher: list[bytearray] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self.to_worker.append(bytearray())
        self.to_dispatcher.append(bytearray())
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, inner_writer, self.to_worker[-1]))
            group.create_task(_copy(inner_reader, writer, self.to_dispatcher[-1]))


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    try:
        while data := await reader.read(65_536):
            kept += data
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


@asynccontextmanager
async def tapped(port: int) -> AsyncIterator[tuple[Tap, str]]:
    tap = Tap(port)
    async with tcp_server(tap.serve) as port_of_tap:
        yield tap, f"127.0.0.1:{port_of_tap}"


async def test_an_unauthenticated_client_of_a_worker_learns_no_token_and_is_refused(
    redis_url: str,
) -> None:
    async with dispatch_processes(redis_url, dispatch={"token": TOKEN}) as processes:
        worker = await processes.add_worker()
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.ports["worker"])
        greeting = await asyncio.wait_for(read_frame(reader), DEADLINE_S)
        assert greeting is not None
        # It uses whatever it was given, as the one who found this did.
        stolen = json.loads(greeting[1]).get("token", "")
        writer.write(frame(HELLO, json.dumps({"token": stolen, "nonce": NONCE}).encode()))
        writer.write(frame(PROCESS_MESSAGE, FORGED_ID + b':{"n":"forged"}'))
        answered = await read_until(reader, ACK_MESSAGE)
        writer.close()
        assert TOKEN.encode() not in greeting[1]
        assert [command for command, _ in answered] == [ERROR]
        assert answered[0][1].startswith(b"token_refused")


async def test_a_recorded_connection_contains_no_token_and_cannot_be_replayed(
    redis_url: str,
) -> None:
    port = free_port()
    async with (
        tapped(port) as (tap, address),
        dispatch_processes(redis_url, dispatch={"token": TOKEN}) as processes,
    ):
        await processes.add_worker(
            ANGARIUM_DISPATCH__WORKER_PORT=str(port), ANGARIUM_DISPATCH__WORKER_ADDRESS=address
        )
        await processes.add_dispatcher()
        await processes.wait_for_leaders()
        await processes.publish([b'{"n":"%d"}' % n for n in range(50)])
        await processes.wait_settled(50, DEADLINE_S)
        assert sum((await processes.results()).counts.values()) == 50
        heard, said = b"".join(tap.to_worker), b"".join(tap.to_dispatcher)
        assert heard.count(b'{"n":"') >= 50
        for secret in (TOKEN, TOKEN.encode().hex()):
            assert secret.encode() not in heard
            assert secret.encode() not in said
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(tap.to_worker[-1]))
        answered = await read_until(reader, ACK_MESSAGE)
        writer.close()
        commands = [command for command, _ in answered]
        assert commands[0] == HELLO
        assert commands[-1] == ERROR
        assert ACK_MESSAGE not in commands


async def test_an_unauthenticated_worker_in_the_list_gets_neither_token_nor_message(
    redis_url: str,
) -> None:
    got: list[Frame] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_hello(consumer_id="stranger", window=1_000, nonce=NONCE))
        while (each := await read_frame(reader)) is not None:
            got.append(each)
            if each[0] == PROOF:  # sent back as it came, and a message acknowledged anyway
                writer.write(frame(PROOF, each[1]) + frame(ACK_MESSAGE, FORGED_ID))
        writer.close()

    async with (
        tcp_server(serve) as port,
        dispatch_processes(redis_url, dispatch={"token": TOKEN}) as processes,
    ):
        address = f"127.0.0.1:{port}"
        await processes.store.join_consumers(address)
        await processes.add_dispatcher(ANGARIUM_DISPATCH__CONSUMERS=address)
        await processes.wait_for_leaders()
        await processes.publish([b'{"n":"1"}'])
        await eventually(lambda: any(command == ERROR for command, _ in got), DEADLINE_S)
        await accepted(processes)
        assert PROCESS_MESSAGE not in [command for command, _ in got]
        assert not any(TOKEN.encode() in payload for _, payload in got)
        # One that knows the token is given what waited.
        await processes.add_worker()
        await processes.wait_settled(1, DEADLINE_S)


async def test_an_unauthenticated_client_of_the_ack_port_acknowledges_nothing(
    redis_url: str,
) -> None:
    async with dispatch_processes(redis_url, dispatch={"token": TOKEN}) as processes:
        dispatcher = await processes.add_dispatcher()
        for first in (
            b"",
            encode_hello(consumer_id="w"),
            encode_hello(consumer_id="w", nonce=NONCE),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", dispatcher.ports["ack"])
            writer.write(first + frame(ACK_MESSAGE, FORGED_ID))
            answered = await read_until(reader, ERROR)
            writer.close()
            assert answered[-1][0] == ERROR
            assert answered[-1][1].startswith(b"token_refused")
            assert not any(TOKEN.encode() in payload for _, payload in answered)


def told(role: RoleProcess) -> bool:
    """Its log says that it is about the token."""
    return any("token_refused" in line and "dispatch.token" in line for line in role.stderr())


@pytest.mark.parametrize(
    ("of_dispatcher", "of_worker"), [(TOKEN, "another"), (TOKEN, ""), ("", TOKEN)]
)
async def test_sides_with_different_tokens_both_log_it_and_exchange_nothing(
    redis_url: str, of_dispatcher: str, of_worker: str
) -> None:
    async with dispatch_processes(redis_url) as processes:
        dispatcher = await processes.add_dispatcher(ANGARIUM_DISPATCH__TOKEN=of_dispatcher)
        worker = await processes.add_worker(ANGARIUM_DISPATCH__TOKEN=of_worker)
        await processes.wait_for_leaders()
        await processes.publish([b'{"n":"1"}'])
        await eventually(lambda: told(dispatcher) and told(worker), DEADLINE_S)
        await accepted(processes)
        for role in (dispatcher, worker):
            assert TOKEN not in "\n".join([*role.stderr(), *role.lines()])


async def test_a_peer_of_release_0_1_0_that_sends_the_token_is_refused_by_name(
    redis_url: str,
) -> None:
    async with dispatch_processes(redis_url, dispatch={"token": TOKEN}) as processes:
        worker = await processes.add_worker()
        dispatcher = await processes.add_dispatcher()
        for port in (worker.ports["worker"], dispatcher.ports["ack"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode_hello(consumer_id="old", token=TOKEN))
            answered = await read_until(reader, ERROR)
            writer.close()
            assert b"0.1.0" in answered[-1][1]
            assert not any(TOKEN.encode() in payload for _, payload in answered)
