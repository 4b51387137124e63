"""Links to workers over real sockets: turns, windows, silence, and every way to misbehave."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial

import pytest

from angarium.dispatch import security
from angarium.dispatch.frames import Command, encode, encode_messages
from angarium.dispatch.identity import new_ids
from angarium.dispatch.links import WRITE_BUFFER_BYTES_MAX, Link, Message
from angarium.dispatch.protocol import Greeting, Rejected, heartbeat, hello, rejection
from angarium.dispatch.warnings import LINES_FIRST
from tests.dispatch.peer import DEADLINE_S, Peer, peer, terms, wired
from tests.kit.eventually import eventually


def messages_of(count: int, payload: bytes = b"{}") -> list[Message]:
    return [(message_id, payload) for message_id in new_ids(count)]


async def arrived(peers: list[Peer], count: int) -> None:
    await eventually(lambda: sum(len(each.messages) for each in peers) >= count, DEADLINE_S)


async def has_space(link: Link, count: int) -> None:
    await eventually(lambda: link.space == count, DEADLINE_S)


async def one_more_beat(peer: Peer) -> None:
    beats = len(peer.frames)
    await eventually(lambda: len(peer.frames) > beats, DEADLINE_S)


def worker(window: int = 100, name: str = "") -> Greeting:
    return Greeting(consumer_id=name, window=window, completes=True)


# Turns and windows --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_messages_go_round_exactly_and_in_order(count: int) -> None:
    async with AsyncExitStack() as stack, wired() as ours:
        peers = [await stack.enter_async_context(peer(worker(1_000))) for _ in range(count)]
        await ours.dial(*peers)
        sent: list[Message] = []
        for size in (1, 10, 7, 1, 1, 100):
            batch = messages_of(size)
            assert ours.links.deal(batch) == size
            sent += batch
        await arrived(peers, len(sent))
        for turn, each in enumerate(peers):
            assert each.messages == sent[turn::count]


async def test_messages_go_round_exactly_when_dealt_one_by_one_too() -> None:
    """A window that is nearly full takes the slower way; turns are the same."""
    async with peer(worker(6)) as a, peer(worker(6)) as b, wired() as ours:
        await ours.dial(a, b)
        sent = messages_of(5)
        assert ours.links.deal(sent[:2]) == 2
        assert ours.links.deal(sent[2:], [None] * 3) == 3
        await arrived([a, b], 5)
        assert a.messages == sent[0::2]
        assert b.messages == sent[1::2]


async def test_nobody_gets_more_than_its_window() -> None:
    async with peer(worker(2)) as a, peer(worker(5)) as b, wired() as ours:
        small, large = await ours.dial(a, b)
        assert ours.links.space == 7
        sent = messages_of(10)
        assert ours.links.deal(sent) == 7
        await arrived([a, b], 7)
        assert (len(a.messages), len(b.messages)) == (2, 5)
        assert [each for each in sent[:7] if each in a.messages + b.messages] == sent[:7]
        assert ours.links.space == 0
        assert ours.links.deal(sent[7:]) == 0
        a.acknowledge(a.ids[0])
        await eventually(lambda: small.space == 1, DEADLINE_S)
        assert ours.links.deal(sent[7:]) == 1
        await eventually(lambda: len(a.messages) == 3, DEADLINE_S)
        assert a.messages[2] == sent[7]
        assert ours.owner.acks == [a.ids[0]]
        assert large.space == 0


async def test_without_workers_nothing_is_dealt() -> None:
    async with wired() as ours:
        assert ours.links.deal(messages_of(3)) == 0
        assert ours.links.space == 0


async def test_who_had_a_message_last_is_avoided() -> None:
    async with peer(worker()) as a, peer(worker()) as b, peer(worker()) as c, wired() as ours:
        links = await ours.dial(a, b, c)
        sent = messages_of(30)
        # Each message was last with the link whose turn it would be.
        avoid = [links[i % 3] for i in range(30)]
        assert ours.links.deal(sent, avoid) == 30
        await arrived([a, b, c], 30)
        for link, each in zip(links, (a, b, c), strict=True):
            had_it = [m for m, last in zip(sent, avoid, strict=True) if last is link]
            assert not [m for m in each.messages if m in had_it]


async def test_avoided_or_not_the_only_worker_gets_it() -> None:
    async with peer(worker()) as a, wired() as ours:
        (link,) = await ours.dial(a)
        sent = messages_of(2)
        assert ours.links.deal(sent, [link, link]) == 2
        await eventually(lambda: a.messages == sent, DEADLINE_S)
        assert ours.links.holder(sent[0][0]) is link
        assert ours.links.holder(b"nobody's") is None


async def test_a_window_shrinks_while_answers_fail_to_come_and_grows_again() -> None:
    async with peer(worker(8)) as a, wired() as ours:
        (link,) = await ours.dial(a)
        modules = []
        for _ in range(5):
            sent = messages_of(link.space)
            ours.links.deal(sent)
            link.expired([message_id for message_id, _ in sent])
            modules.append(link.space)
        assert modules == [4, 2, 1, 1, 1]
        await arrived([a], 8 + 4 + 2 + 1 + 1)
        for expected in (2, 4, 8, 8):
            a.messages.clear()
            ours.links.deal(messages_of(1))
            await arrived([a], 1)
            a.acknowledge(a.ids[0])
            await has_space(link, expected)


async def test_one_late_answer_among_many_in_time_shrinks_nothing() -> None:
    async with peer(worker(8)) as a, wired() as ours:
        (link,) = await ours.dial(a)
        for _ in range(3):
            (late, _), (good, _) = sent = messages_of(2)
            ours.links.deal(sent)
            await arrived([a], 2)
            a.messages.clear()
            a.acknowledge(good)
            await eventually(lambda: link.space == 7, DEADLINE_S)
            link.expired([late])
            assert link.space == 8


async def test_an_answer_for_what_it_does_not_hold_is_foreign_and_frees_nothing() -> None:
    async with peer(worker(3)) as a, wired() as ours:
        (link,) = await ours.dial(a)
        sent = messages_of(1)
        ours.links.deal(sent)
        a.acknowledge(*new_ids(2))
        await eventually(lambda: ours.owner.foreign == 2, DEADLINE_S)
        assert link.space == 2
        assert list(link.held) == [sent[0][0]]


# Greetings ----------------------------------------------------------------------------------


async def test_a_worker_that_greets_is_known_by_its_name_and_greeted_back() -> None:
    async with peer(worker(4, "w-7")) as a, wired(terms(name="north")) as ours:
        (link,) = await ours.dial(a)
        assert (link.consumer, link.completes, link.space) == ("w-7", True, 4)
        await eventually(lambda: a.frames, DEADLINE_S)
        assert a.frames[0] == (Command.HELLO, b'{"consumer_id":"north"}')


async def test_a_worker_of_another_make_gets_messages_without_a_word() -> None:
    async with peer() as a, wired(terms(window=9)) as ours:
        (link,) = await ours.dial(a)
        assert (link.consumer, link.completes, link.space) == (a.address, False, 9)
        sent = messages_of(2, b"\xff\x00 no JSON")
        ours.links.deal(sent)
        await eventually(lambda: a.messages == sent, DEADLINE_S)
        a.write(encode(Command.ACK_MESSAGE, sent[0][0].upper()))
        a.write(rejection(sent[1][0], "can't read it"))
        await eventually(lambda: ours.owner.rejections, DEADLINE_S)
        assert ours.owner.acks == [sent[0][0]]
        assert ours.owner.rejections == [Rejected(sent[1][0], "can't read it")]
        assert [command for command, _ in a.frames] == [Command.PROCESS_MESSAGE] * 2


async def test_with_a_token_only_those_who_prove_that_they_know_it_get_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", 0.2)
    async with (
        peer(Greeting(consumer_id="good", window=1), token="s3cret") as a,
        peer(Greeting(window=1), token="guess") as b,
        peer(Greeting(window=1)) as without,
        peer(first=encode(Command.HELLO, b'{"window":1,"token":"s3cret"}')) as old,
        wired(terms(token="s3cret")) as ours,
        peer() as silent,
    ):
        strangers = (b, without, old, silent)
        ours.keep(a.address, *(each.address for each in strangers))
        await ours.open(a)
        for each in strangers:
            told = await eventually(partial(error_told, each), DEADLINE_S)
            assert told.startswith(b"token_refused")
            assert not each.messages
        assert ours.links.space == 1
        sent = [payload for each in (a, *strangers) for _, payload in each.frames]
        assert not any(b"s3cret" in payload for payload in sent)


def error_told(peer: Peer) -> bytes:
    told = [payload for command, payload in peer.frames if command == Command.ERROR]
    return told[0] if told else b""


async def test_a_worker_that_says_hello_and_never_proves_itself_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", 0.2)
    challenge = encode(Command.HELLO, b'{"window":9,"nonce":"%s"}' % (b"0" * 64))
    async with peer(first=challenge) as a, wired(terms(token="s3cret")) as ours:
        ours.keep(a.address)
        told = await eventually(lambda: error_told(a), DEADLINE_S)
        assert b"no proof" in told
        # It was sent our HELLO and our proof, and nothing else.
        assert [command for command, _ in a.frames[:3]] == [
            Command.HELLO,
            Command.PROOF,
            Command.ERROR,
        ]
        assert ours.links.space == 0


async def test_a_dispatcher_without_a_token_leaves_a_worker_that_asks_for_one() -> None:
    async with peer(Greeting(window=1), token="s3cret") as a, wired(terms()) as ours:
        ours.keep(a.address)
        told = await eventually(lambda: error_told(a), DEADLINE_S)
        assert told.startswith(b"token_refused")
        assert b"no token is set" in told
        assert not a.messages


# Losing them --------------------------------------------------------------------------------


async def test_what_a_broken_link_held_is_told_and_it_is_dialled_again() -> None:
    async with peer(worker(10)) as a, wired() as ours:
        await ours.dial(a)
        sent = messages_of(3)
        ours.links.deal(sent)
        await arrived([a], 3)
        a.acknowledge(sent[1][0])
        await eventually(lambda: ours.owner.acks, DEADLINE_S)
        a.hang_up()
        await eventually(lambda: ours.owner.losses, DEADLINE_S)
        assert ours.owner.losses == [[sent[0][0], sent[2][0]]]
        link = await ours.open(a)
        assert (link.space, link.held) == (10, {})


async def test_a_worker_that_comes_late_is_found() -> None:
    async with wired() as ours:
        async with peer(worker()) as a:
            address = a.address
        ours.keep(address)
        async with peer(worker(), port=int(address.rpartition(":")[2])) as a:
            await ours.open(a)


async def test_garbage_is_answered_counted_and_ends_the_link() -> None:
    async with peer(worker(), first=b"HTTP/1.1 400 Bad Request\r\n") as a, wired() as ours:
        ours.keep(a.address)
        await eventually(lambda: ours.counts.protocol_errors, DEADLINE_S)
        await eventually(lambda: any(command == 5 for command, _ in a.frames), DEADLINE_S)
        told = next(payload for command, payload in a.frames if command == 5)
        assert told.startswith(b"version_unknown")
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
async def test_a_broken_worker_costs_nobody_else_anything(data: bytes) -> None:
    async with peer(worker(), first=data) as bad, peer(worker(50)) as good, wired() as ours:
        ours.keep(bad.address, good.address)
        await ours.open(good)
        await eventually(lambda: ours.counts.protocol_errors >= 2, DEADLINE_S)
        sent = messages_of(3)
        assert ours.links.deal(sent) == 3
        await eventually(
            lambda: len(good.messages) + sum(map(len, ours.owner.losses)) >= 3, DEADLINE_S
        )


async def test_a_frame_that_was_cut_off_is_counted() -> None:
    async with peer(worker()) as a, wired() as ours:
        await ours.dial(a)
        a.write(encode(Command.ACK_MESSAGE, new_ids(1)[0])[:-1])
        a.write(b"")
        connection = a.connections[0].transport
        assert connection is not None
        connection.close()
        await eventually(lambda: ours.counts.frames_cut == 1, DEADLINE_S)
        assert ours.owner.acks == []


async def test_one_that_greeted_and_falls_silent_is_given_up() -> None:
    async with peer(worker()) as a, wired(terms(heartbeat_s=0.05)) as ours:
        (link,) = await ours.dial(a)
        ours.links.deal(messages_of(1))
        await eventually(lambda: ours.owner.losses, DEADLINE_S)
        assert len(ours.owner.losses[0]) == 1
        assert (Command.HEARTBEAT, b"") in a.frames
        assert link.space == 0


async def test_one_that_shows_signs_of_life_is_kept() -> None:
    async with peer(worker()) as a, wired(terms(heartbeat_s=0.05)) as ours:
        await ours.dial(a)
        for _ in range(8):
            a.write(heartbeat())
            await one_more_beat(a)
        assert len(a.connections) == 1


async def test_a_pause_of_our_own_is_not_taken_for_their_silence() -> None:
    async with peer(worker()) as a, wired(terms(heartbeat_s=0.05)) as ours:
        await ours.dial(a)
        a.write(heartbeat())
        time.sleep(0.5)  # the whole process stands still, as under SIGSTOP
        for _ in range(3):
            a.write(heartbeat())
            await one_more_beat(a)
        assert len(a.connections) == 1
        assert ours.owner.losses == []


async def test_one_that_does_not_read_is_passed_over_until_it_does() -> None:
    async with (
        peer(worker(10_000), reads=False) as stuck,
        peer(worker(10_000)) as good,
        wired() as ours,
    ):
        full, free = await ours.dial(stuck, good)
        payload = b"x" * (1024 * 1024)
        for _ in range(WRITE_BUFFER_BYTES_MAX // len(payload) + 8):
            full.send([(new_ids(1)[0], payload)])
        await eventually(lambda: full.space == 0, DEADLINE_S)
        sent = messages_of(20)
        assert ours.links.deal(sent) == 20
        await eventually(lambda: good.messages == sent, DEADLINE_S)
        assert free.space == 10_000 - 20
        (connection,) = stuck.connections
        assert connection.transport is not None
        connection.transport.resume_reading()
        await eventually(lambda: full.space > 0, DEADLINE_S)


# Who is dialled -----------------------------------------------------------------------------


async def test_who_left_the_list_gets_no_more_and_may_finish_what_it_has() -> None:
    async with peer(worker(10)) as a, peer(worker(10)) as b, wired() as ours:
        leaving, _ = await ours.dial(a, b)
        sent = messages_of(2)
        ours.links.deal(sent)
        await arrived([a, b], 2)
        ours.keep(b.address)
        assert leaving.space == 0
        assert ours.links.deal(messages_of(4)) == 4
        await arrived([b], 5)
        assert len(a.messages) == 1
        a.acknowledge(a.ids[0])
        await eventually(lambda: ours.owner.acks == [a.ids[0]], DEADLINE_S)
        ours.keep(b.address)
        await eventually(lambda: not a.alive, DEADLINE_S)
        await eventually(lambda: len(ours.links.links) == 1, DEADLINE_S)
        assert ours.owner.losses == [[]]


async def test_who_comes_back_before_it_is_gone_is_dealt_to_again() -> None:
    async with peer(worker(10)) as a, wired() as ours:
        (link,) = await ours.dial(a)
        ours.links.deal(messages_of(1))
        ours.keep()
        assert ours.links.space == 0
        ours.keep(a.address)
        assert ours.links.space == 9
        assert ours.link(a) is link


async def test_an_address_named_twice_is_dialled_once() -> None:
    async with peer(worker()) as a, wired() as ours:
        ours.keep(a.address, a.address)
        await ours.open(a)
        ours.keep(a.address)
        assert len(a.connections) == 1


@pytest.mark.parametrize(
    "address",
    ["", "nowhere", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999", "127.0.0.1:-1",
     "a..b:80", "nul\0:80", f"{'x' * 300}:80", "[::1", ":::", "127.0.0.1:0"],
)  # fmt: skip
async def test_an_address_that_is_none_harms_nobody(address: str) -> None:
    async with peer(worker()) as a, wired() as ours:
        ours.keep(address, a.address)
        await ours.open(a)
        await asyncio.sleep(0)
        ours.keep(address, a.address)
        assert ours.links.deal(messages_of(1)) == 1
        await arrived([a], 1)


async def test_a_second_greeting_sets_the_window_anew() -> None:
    async with peer(worker(2)) as a, wired() as ours:
        (link,) = await ours.dial(a)
        ours.links.deal(messages_of(2))
        a.write(hello(worker(5, "renamed")))
        await eventually(lambda: link.space == 3, DEADLINE_S)
        assert link.consumer == "renamed"
        assert sum(command == Command.HELLO for command, _ in a.frames) <= 1


async def test_a_worker_that_hangs_up_before_its_proof_is_named_a_few_times_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    async with server, wired(terms(token="s3cret")) as ours:
        ours.keep(address)
        await eventually(lambda: len(ours.owner.losses) > LINES_FIRST + 1, DEADLINE_S)
        lines = [record.getMessage() for record in caplog.records if address in record.getMessage()]
        assert len(lines) == LINES_FIRST
        assert all("before a proof" in line for line in lines)
