"""Third-party workers, written from the protocol page, as processes with real messages.

The examples in `examples/` are what is run here, so they are known to work as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import trustme

from angarium.dispatch import frames
from angarium.dispatch.frames import Command, FrameReader, encode_acknowledgements
from angarium.dispatch.protocol import (
    DispatcherProtocol,
    Hello,
    HelloReceived,
    ProtocolViolated,
    SendBytes,
    WorkerProtocol,
    encode_error,
    encode_heartbeat,
    encode_hello,
    encode_rejection,
)
from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.interop.node import node
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.roles import ROOT, RoleProcess
from tests.kit.server import ServerProcess

EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "protocols" / "dispatch.md"
NODE_WORKER = EXAMPLES / "dispatch_worker_node" / "worker.mjs"
PLAIN_WORKER = EXAMPLES / "dispatch_worker_plain" / "worker.py"
DEADLINE_S = 60.0
# No message may time out, even on a busy machine.
PATIENT = {"ack_timeout_ms": 60_000}


class NodeWorker(RoleProcess):
    """The example in Node; it registers itself unless the options say otherwise."""

    def __init__(self, processes: DispatchProcesses, **options: str) -> None:
        keyspace = processes.runtime.keyspace
        given = {
            "redis": processes.runtime.settings.redis_url,
            "prefix": keyspace.prefix,
            "partitions": str(keyspace.partitions),
            **options,
        }
        super().__init__([node(), str(NODE_WORKER), *_arguments(given)])

    def _command(self) -> list[str]:
        return self._args


def plain_worker(
    processes: DispatchProcesses, server: ServerProcess, **options: str
) -> RoleProcess:
    given = {"redis": f"127.0.0.1:{server.port}", "stream": processes.stream_name(0), **options}
    return RoleProcess(["-u", str(PLAIN_WORKER), *_arguments(given)])


def _arguments(options: Mapping[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def numbered(count: int) -> list[bytes]:
    return [b'{"n":"%d"}' % n for n in range(count)]


async def all_arrive(processes: DispatchProcesses, count: int) -> set[str]:
    """Wait until each of `count` numbered messages has one result; their consumers."""
    await processes.wait_settled(count, DEADLINE_S)
    arrived = await processes.results()
    assert arrived.counts == {str(n): 1 for n in range(count)}
    return set(arrived.consumers)


# The protocol page


def test_the_bytes_on_the_page_equal_the_encoded_frames() -> None:
    message_id = b"7d3f6c1e-0b5a-4c8e-9a51-2f6d8e4b0c37"
    (broken,) = DispatcherProtocol(1_000, None, dials=True).receive(b"\x02")
    assert isinstance(broken, ProtocolViolated)
    sent = {
        "PROCESS_MESSAGE": frames.encode_messages([(message_id, b'{"n":1}')]),
        "ACK_MESSAGE": encode_acknowledgements([message_id]),
        "NACK_MESSAGE with a reason": encode_rejection(message_id, "no such customer"),
        "NACK_MESSAGE without a reason": encode_rejection(message_id),
        "HELLO of a worker": encode_hello(Hello("10.0.0.7:9100", 200)),
        "HEARTBEAT": encode_heartbeat(),
        "ERROR": encode_error(broken.error),
        **handshake_on_the_page(),
    }
    blocks = re.findall(r"```hex\n; (.+)\n((?:[^`]+\n)+)```", PAGE.read_text())
    shown = {
        name: bytes.fromhex("".join(line.partition(";")[0] for line in lines.splitlines()))
        for name, lines in blocks
    }
    assert shown == sent


def handshake_on_the_page() -> dict[str, bytes]:
    """On a worker's port, with the token and the nonces of the page."""
    worker = WorkerProtocol(
        10_000,
        "s3cret",
        Hello("10.0.0.7:9100", 200),
        dials=False,
        random_bytes=lambda count: b"\x11" * count,
    )
    dispatcher = DispatcherProtocol(
        10_000, "s3cret", Hello("d1"), dials=True, random_bytes=lambda count: b"\x22" * count
    )
    first = worker.opening()
    (second,) = dispatcher.receive(first)
    assert isinstance(second, SendBytes)
    third, greeted = worker.receive(second.data)
    assert isinstance(third, SendBytes)
    assert isinstance(greeted, HelloReceived)
    assert dispatcher.receive(third.data) == [HelloReceived(Hello("10.0.0.7:9100", 200))]
    return {
        "HELLO of a worker with a token": first,
        "HELLO and PROOF of a dispatcher": second.data,
        "PROOF of a worker": third.data,
    }


def test_the_page_names_every_command_by_its_number() -> None:
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {name: int(number) for number, name in rows} == dict(Command.__members__)
    reader = FrameReader(100)
    reader.feed(bytes([1, len(rows), 0, 0, 0, 0]))
    assert reader.error is not None, "there are no more commands than the page has"


# Node


async def test_a_worker_in_node_registers_gets_its_share_and_leaves(redis_url: str) -> None:
    async with dispatch_processes(redis_url, partitions=4, dispatch=PATIENT) as processes:
        await processes.add_dispatcher()
        async with NodeWorker(processes, window="20") as worker:
            await processes.wait_for_leaders()
            await processes.publish(numbered(300))
            address = f"127.0.0.1:{worker.ports['worker']}"
            assert await all_arrive(processes, 300) == {address}
            assert await processes.store.consumers() == [address]
            assert worker.terminate() == 0
        assert await processes.store.consumers() == []


async def test_a_message_that_a_worker_in_node_rejects_is_a_dead_letter_with_its_reason(
    redis_url: str,
) -> None:
    async with dispatch_processes(
        redis_url, dispatch={**PATIENT, "deliveries_max": 2}
    ) as processes:
        await processes.add_dispatcher()
        async with NodeWorker(processes) as worker:
            await processes.wait_for_leaders()
            await processes.publish(
                [b'{"n":"1","fail":"no such customer"}', b"{no json", *numbered(1)]
            )

            async def both_dead() -> bool:
                status = await processes.store.status(0)
                return status.dead == 2 and status.processed == 1 and status.pending == 0

            await eventually(both_dead, DEADLINE_S)
            letters = await processes.store.dead_letters(0, 10)
            reasons = {each.payload: each.reasons for each in letters}
            address = f"127.0.0.1:{worker.ports['worker']}"
            refused = f"{address}: no such customer"
            assert reasons[b'{"n":"1","fail":"no such customer"}'] == [refused, refused]
            assert len(reasons[b"{no json"]) == 2


async def test_a_worker_in_node_acknowledges_at_a_dispatcher_that_does_not_lead(
    redis_url: str,
) -> None:
    async with dispatch_processes(redis_url, dispatch=PATIENT) as processes:
        leader = await processes.add_dispatcher()
        assert await processes.wait_for_leaders() is leader
        standby = await processes.add_dispatcher()
        async with NodeWorker(processes, ack=f"127.0.0.1:{standby.ports['ack']}") as worker:
            await processes.publish(numbered(100))
            assert await all_arrive(processes, 100) == {f"127.0.0.1:{worker.ports['worker']}"}


async def test_a_worker_in_node_speaks_tls_and_proves_that_it_knows_the_token(
    redis_url: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    files = {name: str(tmp_path / name) for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(files["key"])
    certificate.cert_chain_pems[0].write_to_path(files["cert"])
    secured = {
        **PATIENT,
        "token": "s3cret",
        "tls_certificate": files["cert"],
        "tls_key": files["key"],
        "tls_authority": files["ca"],
    }
    async with dispatch_processes(redis_url, dispatch=secured) as processes:
        dispatcher = await processes.add_dispatcher()
        await processes.wait_for_leaders()
        ack = f"127.0.0.1:{dispatcher.ports['ack']}"
        async with (
            NodeWorker(processes, token="wrong", **files) as stranger,
            NodeWorker(processes, token="s3cret", ack=ack, **files) as worker,
        ):
            await eventually(lambda: any("token_refused" in e for e in stranger.stderr()), 30)
            assert not any("s3cret" in line for line in (*stranger.stderr(), *worker.stderr()))
            await processes.publish(numbered(50))
            assert await all_arrive(processes, 50) == {f"127.0.0.1:{worker.ports['worker']}"}


# A worker with two commands


async def test_a_worker_that_knows_two_commands_acknowledges_on_its_connection(
    redis_server: ServerProcess,
) -> None:
    async with (
        dispatch_processes(
            redis_server.url, dispatch={**PATIENT, "worker_window": 20}
        ) as processes,
        plain_worker(processes, redis_server) as worker,
    ):
        address = f"127.0.0.1:{worker.ports['worker']}"
        await processes.add_dispatcher(ANGARIUM_DISPATCH__CONSUMERS=address)
        await processes.wait_for_leaders()
        await processes.publish(numbered(200))
        assert await all_arrive(processes, 200) == {address}


async def test_a_worker_that_knows_two_commands_acknowledges_at_the_ack_port(
    redis_server: ServerProcess,
) -> None:
    async with dispatch_processes(
        redis_server.url, dispatch={**PATIENT, "worker_window": 20}
    ) as processes:
        port = free_port()
        address = f"127.0.0.1:{port}"
        dispatcher = await processes.add_dispatcher(ANGARIUM_DISPATCH__CONSUMERS=address)
        await processes.wait_for_leaders()
        await processes.publish(numbered(200))
        ack = f"127.0.0.1:{dispatcher.ports['ack']}"
        async with plain_worker(processes, redis_server, port=str(port), ack=ack):
            assert await all_arrive(processes, 200) == {address}


def says(role: RoleProcess, text: str) -> bool:
    return any(text in line for line in role.stderr())


async def test_a_plain_worker_proves_that_it_knows_the_token(redis_server: ServerProcess) -> None:
    secured = {**PATIENT, "worker_window": 20, "token": "s3cret", "heartbeat_ms": 200}
    async with dispatch_processes(redis_server.url, dispatch=secured) as processes:
        ports = [free_port() for _ in range(3)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        dispatcher = await processes.add_dispatcher(
            ANGARIUM_DISPATCH__CONSUMERS=",".join(addresses),
        )
        await processes.wait_for_leaders()
        ack = f"127.0.0.1:{dispatcher.ports['ack']}"
        async with (
            plain_worker(processes, redis_server, port=str(ports[0]), token="s3cret"),
            plain_worker(processes, redis_server, port=str(ports[1]), token="s3cret", ack=ack),
            plain_worker(processes, redis_server, port=str(ports[2]), token="wrong") as stranger,
        ):

            async def both_have_worked() -> bool:
                await processes.publish(numbered(2))
                return set((await processes.results()).consumers) == set(addresses[:2])

            await eventually(both_have_worked, DEADLINE_S)
            for role in (stranger, dispatcher):
                await eventually(partial(says, role, "the proof is wrong"), DEADLINE_S)


# Examples with our own worker


async def test_the_examples_with_our_own_worker_run_unchanged(redis_url: str) -> None:
    async with dispatch_processes(redis_url, dispatch=PATIENT) as processes:
        await processes.add_dispatcher()
        for name in ("app", "app_of_sync"):
            await processes.add_worker(f"examples.dispatch_worker_python.worker:{name}")
        await processes.wait_for_leaders()

        async def both_have_worked() -> bool:
            await processes.publish([b'{"n":"1","amount":3,"unit_price":4}'] * 2)
            return len((await processes.results()).consumers) == 2

        await eventually(both_have_worked, DEADLINE_S)
        stream = processes.stream_name(0)
        ((_, fields),) = await processes.runtime.redis.call("XRANGE", stream, "-", "+", "COUNT", 1)
        assert fields[fields.index(b"total") + 1] == b"12"
