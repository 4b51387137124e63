"""Messages that wait for a worker: in order, bounded, and given back before their time is over."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.identity import new_ids
from angarium.dispatch.links import Link, Links, Message
from angarium.dispatch.protocol import Greeting
from angarium.dispatch.ready import FULL_PART, MESSAGES_MAX, OVERSTAYED_PART, Ready
from tests.dispatch.peer import DEADLINE_S, peer, wired
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually

TIMEOUT_S = 2.0


class Module(Links):
    """Links that have as much space as they are told, and remember what they were dealt."""

    def __init__(self) -> None:
        self.left = 0
        self.dealt: list[tuple[Message, Link | None]] = []

    def deal(self, messages: Sequence[Message], avoid: Sequence[Link | None] = ()) -> int:
        count = min(self.left, len(messages))
        self.left -= count
        last: Sequence[Link | None] = avoid or [None] * len(messages)
        self.dealt += zip(messages[:count], last, strict=False)
        return count


def numbered(*numbers: int) -> list[Message]:
    return [(b"%d" % number, b"payload of %d" % number) for number in numbers]


def ready_on(links: Links, clock: FakeClock) -> Ready:
    return Ready(links, clock, TIMEOUT_S)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 5)),
            st.tuples(st.just("space"), st.integers(0, 7)),
        ),
        max_size=30,
    )
)
def test_everything_is_dealt_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    links = Module()
    ready = ready_on(links, FakeClock())
    added: list[tuple[Message, Link | None]] = []
    for number, (step, count) in enumerate(steps):
        if step == "add":
            chunk = numbered(*range(len(added), len(added) + count))
            # What was redelivered names for each who had it last; what is new names nobody.
            avoid: list[Link | None] = [None] * count if number % 2 else []
            ready.add(chunk, avoid)
            added += [(each, None) for each in chunk]
        else:
            links.left = count
            expected = min(count, len(added) - len(links.dealt))
            assert ready.deal() == expected
        assert links.dealt == added[: len(links.dealt)]
        assert bool(ready) == (len(links.dealt) < len(added))
        assert ready.space == MESSAGES_MAX - (len(added) - len(links.dealt))


async def test_who_is_avoided_stays_with_its_message_when_a_chunk_is_cut() -> None:
    async with peer(Greeting(window=1)) as a, peer(Greeting(window=3)) as b, wired() as ours:
        first, second = await ours.dial(a, b)
        ready = ready_on(ours.links, FakeClock())
        messages = [(message_id, b"{}") for message_id in new_ids(4)]
        ready.add(messages[:3], [second, first, first])
        ready.add(messages[3:], [first])
        assert ready.deal() == 4
        await eventually(lambda: len(a.messages) + len(b.messages) == 4, DEADLINE_S)
        assert a.messages == messages[:1]
        assert b.messages == messages[1:]
        assert not ready


async def test_a_cut_chunk_goes_on_where_it_was_cut() -> None:
    async with peer(Greeting(window=2)) as a, wired() as ours:
        await ours.dial(a)
        ready = ready_on(ours.links, FakeClock())
        messages = [(message_id, b"{}") for message_id in new_ids(5)]
        ready.add(messages)
        assert ready.deal() == 2
        assert ready.deal() == 0
        await eventually(lambda: a.messages == messages[:2], DEADLINE_S)
        a.acknowledge(messages[0][0])
        await eventually(lambda: ours.links.space == 1, DEADLINE_S)
        assert ready.deal() == 1
        await eventually(lambda: a.messages == messages[:3], DEADLINE_S)
        assert ready


async def test_a_queue_whose_head_is_old_takes_no_more() -> None:
    clock, links = FakeClock(), Module()
    ready = ready_on(links, clock)
    ready.add(numbered(1))
    await clock.advance(TIMEOUT_S * FULL_PART)
    assert ready.space == MESSAGES_MAX - 1
    await clock.advance(0.001)
    assert ready.space == 0
    links.left = 1
    ready.deal()
    assert ready.space == MESSAGES_MAX


async def test_what_waited_too_long_is_given_back_and_nothing_newer() -> None:
    clock, links = FakeClock(), Module()
    ready = ready_on(links, clock)
    ready.add(numbered(1, 2, 3))
    await clock.advance(0.6)
    ready.add(numbered(4, 5))
    links.left = 1
    ready.deal()
    await clock.advance(TIMEOUT_S * OVERSTAYED_PART - 0.6)
    assert ready.overstayed() == []
    await clock.advance(0.001)
    assert ready.overstayed() == [b"2", b"3"]
    assert ready.overstayed() == []
    links.left = 10
    assert ready.deal() == 2
    assert [message_id for (message_id, _), _ in links.dealt] == [b"1", b"4", b"5"]


async def test_it_is_bounded_and_can_be_emptied() -> None:
    ready = ready_on(Module(), FakeClock())
    ready.add(numbered(*range(MESSAGES_MAX + 5)))
    assert ready.space == 0
    ready.clear()
    assert ready.space == MESSAGES_MAX
    assert not ready
    assert ready.deal() == 0
    ready.add([])
    assert not ready
