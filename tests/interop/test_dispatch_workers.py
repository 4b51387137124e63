"""Workers of another make as real processes: written from the protocol page, given real messages.

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
    Answer,
    Broken,
    DispatcherSide,
    Greeted,
    Greeting,
    WorkerSide,
    heartbeat,
    hello,
    rejection,
)
from tests.dispatch.fleet import Fleet, fleet
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
# Nothing here is meant to time out, however busy the machine is.
PATIENT = {"ack_timeout_ms": 60_000}


class NodeWorker(RoleProcess):
    """The example in Node, registered unless told otherwise."""

    def __init__(self, fleet: Fleet, **options: str) -> None:
        keyspace = fleet.runtime.keyspace
        given = {
            "redis": fleet.runtime.settings.redis_url,
            "prefix": keyspace.prefix,
            "partitions": str(keyspace.partitions),
            **options,
        }
        super().__init__([node(), str(NODE_WORKER), *_arguments(given)])

    def _command(self) -> list[str]:
        return self._args


def plain_worker(fleet: Fleet, server: ServerProcess, **options: str) -> RoleProcess:
    given = {"redis": f"127.0.0.1:{server.port}", "stream": fleet.store.stream_name(0), **options}
    return RoleProcess(["-u", str(PLAIN_WORKER), *_arguments(given)])


def _arguments(options: Mapping[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def numbered(count: int) -> list[bytes]:
    return [b'{"n":"%d"}' % n for n in range(count)]


async def all_arrive(fleet: Fleet, count: int) -> set[str]:
    """Who worked, when each of `count` numbered messages stands in the stream once."""
    await fleet.settled(count, DEADLINE_S)
    arrived = await fleet.arrived()
    assert arrived.counts == {str(n): 1 for n in range(count)}
    return set(arrived.consumers)


# The page


def test_the_bytes_on_the_page_are_those_that_are_sent() -> None:
    message_id = b"7d3f6c1e-0b5a-4c8e-9a51-2f6d8e4b0c37"
    (broken,) = DispatcherSide(1_000, None, dials=True).receive(b"\x02")
    assert isinstance(broken, Broken)
    sent = {
        "PROCESS_MESSAGE": frames.encode_messages([(message_id, b'{"n":1}')]),
        "ACK_MESSAGE": encode_acknowledgements([message_id]),
        "NACK_MESSAGE with a reason": rejection(message_id, "no such customer"),
        "NACK_MESSAGE without a reason": rejection(message_id),
        "HELLO of a worker": hello(Greeting("10.0.0.7:9100", 200)),
        "HEARTBEAT": heartbeat(),
        "ERROR": broken.farewell,
        **handshake_on_the_page(),
    }
    blocks = re.findall(r"```hex\n; (.+)\n((?:[^`]+\n)+)```", PAGE.read_text())
    shown = {
        name: bytes.fromhex("".join(line.partition(";")[0] for line in lines.splitlines()))
        for name, lines in blocks
    }
    assert shown == sent


def handshake_on_the_page() -> dict[str, bytes]:
    """On a worker's port, with the token and the nonces that the page names."""
    worker = WorkerSide(
        10_000,
        "s3cret",
        Greeting("10.0.0.7:9100", 200),
        dials=False,
        random_bytes=lambda count: b"\x11" * count,
    )
    dispatcher = DispatcherSide(
        10_000, "s3cret", Greeting("d1"), dials=True, random_bytes=lambda count: b"\x22" * count
    )
    first = worker.opening()
    (second,) = dispatcher.receive(first)
    assert isinstance(second, Answer)
    third, greeted = worker.receive(second.data)
    assert isinstance(third, Answer)
    assert isinstance(greeted, Greeted)
    assert dispatcher.receive(third.data) == [Greeted(Greeting("10.0.0.7:9100", 200))]
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
    async with fleet(redis_url, partitions=4, dispatch=PATIENT) as ships:
        await ships.add_dispatcher()
        async with NodeWorker(ships, window="20") as worker:
            await ships.led()
            await ships.publish(numbered(300))
            address = f"127.0.0.1:{worker.ports['worker']}"
            assert await all_arrive(ships, 300) == {address}
            assert await ships.store.consumers() == [address]
            assert worker.terminate() == 0
        assert await ships.store.consumers() == []


async def test_what_a_worker_in_node_refuses_is_a_dead_letter_with_its_reason(
    redis_url: str,
) -> None:
    async with fleet(redis_url, dispatch={**PATIENT, "deliveries_max": 2}) as ships:
        await ships.add_dispatcher()
        async with NodeWorker(ships) as worker:
            await ships.led()
            await ships.publish([b'{"n":"1","fail":"no such customer"}', b"{no json", *numbered(1)])

            async def both_dead() -> bool:
                status = await ships.store.status(0)
                return status.dead == 2 and status.processed == 1 and status.pending == 0

            await eventually(both_dead, DEADLINE_S)
            letters = await ships.store.dead_letters(0, 10)
            reasons = {each.payload: each.reasons for each in letters}
            address = f"127.0.0.1:{worker.ports['worker']}"
            refused = f"{address}: no such customer"
            assert reasons[b'{"n":"1","fail":"no such customer"}'] == [refused, refused]
            assert len(reasons[b"{no json"]) == 2


async def test_a_worker_in_node_acknowledges_at_a_dispatcher_that_does_not_lead(
    redis_url: str,
) -> None:
    async with fleet(redis_url, dispatch=PATIENT) as ships:
        leader = await ships.add_dispatcher()
        assert await ships.led() is leader
        standby = await ships.add_dispatcher()
        async with NodeWorker(ships, ack=f"127.0.0.1:{standby.ports['ack']}") as worker:
            await ships.publish(numbered(100))
            assert await all_arrive(ships, 100) == {f"127.0.0.1:{worker.ports['worker']}"}


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
    async with fleet(redis_url, dispatch=secured) as ships:
        dispatcher = await ships.add_dispatcher()
        await ships.led()
        ack = f"127.0.0.1:{dispatcher.ports['ack']}"
        async with (
            NodeWorker(ships, token="wrong", **files) as stranger,
            NodeWorker(ships, token="s3cret", ack=ack, **files) as worker,
        ):
            await eventually(lambda: any("token_refused" in e for e in stranger.stderr()), 30)
            assert not any("s3cret" in line for line in (*stranger.stderr(), *worker.stderr()))
            await ships.publish(numbered(50))
            assert await all_arrive(ships, 50) == {f"127.0.0.1:{worker.ports['worker']}"}


# Two commands and nothing else


async def test_a_worker_that_knows_two_commands_acknowledges_on_the_link(
    redis_server: ServerProcess,
) -> None:
    async with (
        fleet(redis_server.url, dispatch={**PATIENT, "worker_window": 20}) as ships,
        plain_worker(ships, redis_server) as worker,
    ):
        address = f"127.0.0.1:{worker.ports['worker']}"
        await ships.add_dispatcher(ANGARIUM_DISPATCH__CONSUMERS=address)
        await ships.led()
        await ships.publish(numbered(200))
        assert await all_arrive(ships, 200) == {address}


async def test_a_worker_that_knows_two_commands_acknowledges_at_the_port(
    redis_server: ServerProcess,
) -> None:
    async with fleet(redis_server.url, dispatch={**PATIENT, "worker_window": 20}) as ships:
        port = free_port()
        address = f"127.0.0.1:{port}"
        dispatcher = await ships.add_dispatcher(ANGARIUM_DISPATCH__CONSUMERS=address)
        await ships.led()
        await ships.publish(numbered(200))
        ack = f"127.0.0.1:{dispatcher.ports['ack']}"
        async with plain_worker(ships, redis_server, port=str(port), ack=ack):
            assert await all_arrive(ships, 200) == {address}


def says(role: RoleProcess, text: str) -> bool:
    return any(text in line for line in role.stderr())


async def test_a_plain_worker_proves_that_it_knows_the_token(redis_server: ServerProcess) -> None:
    secured = {**PATIENT, "worker_window": 20, "token": "s3cret", "heartbeat_ms": 200}
    async with fleet(redis_server.url, dispatch=secured) as ships:
        ports = [free_port() for _ in range(3)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        dispatcher = await ships.add_dispatcher(
            ANGARIUM_DISPATCH__CONSUMERS=",".join(addresses),
        )
        await ships.led()
        ack = f"127.0.0.1:{dispatcher.ports['ack']}"
        async with (
            plain_worker(ships, redis_server, port=str(ports[0]), token="s3cret"),
            plain_worker(ships, redis_server, port=str(ports[1]), token="s3cret", ack=ack),
            plain_worker(ships, redis_server, port=str(ports[2]), token="wrong") as stranger,
        ):

            async def both_have_worked() -> bool:
                await ships.publish(numbered(2))
                return set((await ships.arrived()).consumers) == set(addresses[:2])

            await eventually(both_have_worked, DEADLINE_S)
            for role in (stranger, dispatcher):
                await eventually(partial(says, role, "the proof is wrong"), DEADLINE_S)


# Ours, as an example


async def test_the_examples_with_our_own_worker_run_as_they_stand(redis_url: str) -> None:
    async with fleet(redis_url, dispatch=PATIENT) as ships:
        await ships.add_dispatcher()
        for name in ("app", "app_of_sync"):
            await ships.add_worker(f"examples.dispatch_worker_python.worker:{name}")
        await ships.led()

        async def both_have_worked() -> bool:
            await ships.publish([b'{"n":"1","amount":3,"unit_price":4}'] * 2)
            return len((await ships.arrived()).consumers) == 2

        await eventually(both_have_worked, DEADLINE_S)
        stream = ships.store.stream_name(0)
        ((_, fields),) = await ships.runtime.redis.call("XRANGE", stream, "-", "+", "COUNT", 1)
        assert fields[fields.index(b"total") + 1] == b"12"
