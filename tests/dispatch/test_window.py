"""What a link holds no longer, though nobody said so on the link, gives its place to others."""

from __future__ import annotations

from angarium.dispatch.identity import new_ids
from angarium.dispatch.protocol import Greeting
from tests.dispatch.peer import peer, wired


async def test_what_is_acknowledged_at_the_ack_port_leaves_the_window() -> None:
    async with peer(Greeting(window=2)) as a, peer(Greeting(window=2)) as b, wired() as ours:
        one, two = await ours.dial(a, b)
        ids = new_ids(4)
        assert ours.links.deal([(each, b"x") for each in ids]) == 4
        assert (one.space, two.space) == (0, 0)
        ours.links.answered_elsewhere([ids[0], ids[2], ids[3], *new_ids(1)])
        assert (one.space, two.space) == (2, 1)
        assert list(two.held) == [ids[1]]


async def test_what_was_finished_out_of_sight_leaves_the_window_when_it_is_old() -> None:
    async with peer(Greeting(window=2)) as other, wired() as ours:
        (link,) = await ours.dial(other)
        assert ours.links.deal([(each, b"x") for each in new_ids(3)]) == 2
        assert ours.links.forget(3_600) == 0
        assert link.space == 0
        assert ours.links.forget(-1) == 2
        assert (link.space, link.held) == (2, {})
