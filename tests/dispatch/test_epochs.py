"""The ring finds exactly the unaccepted messages, wherever leaders die, even with equal payloads.

The channel is a list of messages and markers. Every dispatcher receives all of it in the same
order, from the position at which it subscribed. Accepting is a record of digests under an epoch;
the next leader knows nothing else of the earlier ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.epochs import DIGEST_BYTES, EpochRing, digest, split_digests

MARKER = None
# Few different payloads, so that equal ones occur within an epoch and across epochs.
CHANNEL = st.lists(
    st.one_of(st.sampled_from([b"a", b"a", b"b", b"c"]), st.just(MARKER)), max_size=40
)
BIG = 1_000_000

Record = dict[int, list[bytes]]
"""The record in Redis: for each epoch the digests of each batch."""


def owned_by(number: int, places: int, digest: bytes) -> bool:
    return digest[0] % places == number


def owns_all(_: bytes) -> bool:
    return True


@dataclass
class DispatcherRing:
    """One dispatcher's ring, and the epoch of the next message."""

    ring: EpochRing = field(default_factory=lambda: EpochRing(BIG, BIG))
    epoch: int = 0

    def receive(self, item: bytes | None) -> list[tuple[int, bytes]]:
        """The messages that a leader is offered now: epoch and payload of each."""
        if item is MARKER:
            before = self.ring.begin_epoch(self.epoch)
            return [(self.epoch - 1, payload) for payload in before]
        assert item is not None
        self.ring.add([item])
        return [] if self.ring.current is None else [(self.ring.current, item)]


def numbered(channel: list[bytes | None]) -> list[tuple[bytes | None, int]]:
    """Each item with the epoch after it; the first marker is 1, as in Redis."""
    epoch, found = 0, []
    for item in channel:
        epoch += item is MARKER
        found.append((item, epoch))
    return found


def accepted(record: Record) -> dict[int, Counter[bytes]]:
    return {epoch: split_digests(batches) for epoch, batches in record.items()}


def write(record: Record, epoch: int, payloads: list[bytes]) -> None:
    record.setdefault(epoch, []).append(b"".join(map(digest, payloads)))


def lead(record: Record, offers: list[tuple[int, bytes]], count: int, batch: int) -> None:
    """Accept the first `count` offered messages, in batches of one epoch each."""
    waiting: list[bytes] = []
    epoch = offers[0][0] if offers else 0
    for next_epoch, payload in offers[:count]:
        if waiting and (next_epoch != epoch or len(waiting) == batch):
            write(record, epoch, waiting)
            waiting = []
        epoch = next_epoch
        waiting.append(payload)
    if waiting:
        write(record, epoch, waiting)


def unaccepted_of(ring: EpochRing, record: Record, covered: int = 0) -> list[tuple[int, bytes]]:
    found = ring.unaccepted(accepted(record), covered, owns_all)
    for _, pairs in found:
        assert all(digest(payload) == recorded for payload, recorded in pairs)
    return [(epoch, payload) for epoch, pairs in found for payload, _ in pairs]


def contents(channel: list[bytes | None], start: int = 0) -> dict[int, list[bytes]]:
    """The messages of each epoch that were received from `start` on."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for item, epoch in numbered(channel)[start:]:
        if item is not None:
            found[epoch].append(item)
    return found


def counted(record: Record) -> dict[int, Counter[bytes]]:
    return {epoch: count for epoch, count in accepted(record).items() if count}


@given(channel=CHANNEL, dies_after=st.integers(0, 40), batch=st.integers(1, 5))
def test_the_ring_finds_exactly_the_messages_that_a_dead_leader_did_not_accept(
    channel: list[bytes | None], dies_after: int, batch: int
) -> None:
    leader, standby = DispatcherRing(), DispatcherRing()
    offers: list[tuple[int, bytes]] = []
    for item, epoch in [(MARKER, 1), *((i, e + 1) for i, e in numbered(channel))]:
        leader.epoch = standby.epoch = epoch
        offers += leader.receive(item)
        standby.receive(item)
    record: Record = {}
    lead(record, offers, dies_after, batch)
    assert unaccepted_of(standby.ring, record) == offers[dies_after:]


@given(channel=CHANNEL, chosen=st.lists(st.booleans(), min_size=40, max_size=40))
def test_the_ring_finds_the_rest_for_any_accepted_part(
    channel: list[bytes | None], chosen: list[bool]
) -> None:
    """Two batches may be in flight at once, so the accepted messages need not be the first ones."""
    received, record = DispatcherRing(), Record()
    taken: Counter[tuple[int, bytes]] = Counter()
    for (item, epoch), take in zip(numbered([MARKER, *channel]), [False, *chosen], strict=False):
        received.epoch = epoch
        received.receive(item)
        if item is not None and take:
            write(record, epoch, [item])
            taken[epoch, item] += 1
    every = Counter((epoch, p) for epoch, ps in contents([MARKER, *channel]).items() for p in ps)
    assert Counter(unaccepted_of(received.ring, record)) + taken == every


@given(
    channel=CHANNEL,
    deaths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=4),
    batch=st.integers(1, 4),
)
def test_any_sequence_of_leaders_accepts_every_message_once(
    channel: list[bytes | None], deaths: list[tuple[int, int]], batch: int
) -> None:
    """Each death: its position in the channel, and how much of the queue was accepted by then."""
    dispatchers = [DispatcherRing() for _ in range(len(deaths) + 1)]
    record: Record = {}
    queue: list[tuple[int, bytes]] = []
    leader = 0
    dying = dict(sorted(deaths))
    for place, (item, epoch) in enumerate(numbered([MARKER, *channel])):
        for number, each in enumerate(dispatchers):
            each.epoch = epoch
            offered = each.receive(item)
            if number == leader:
                queue += offered
        if place in dying and leader + 1 < len(dispatchers):
            lead(record, queue, dying[place], batch)
            leader += 1
            queue = unaccepted_of(dispatchers[leader].ring, record)
    lead(record, queue, len(queue), batch)
    expected = {
        epoch: Counter(map(digest, ps)) for epoch, ps in contents([MARKER, *channel]).items()
    }
    assert counted(record) == expected


@given(
    channel=CHANNEL,
    start=st.integers(0, 40),
    dies_after=st.integers(0, 40),
)
def test_a_dispatcher_that_subscribed_within_an_epoch_finds_the_complete_epochs_and_doubles_nothing(
    channel: list[bytes | None], start: int, dies_after: int
) -> None:
    channel = [MARKER, *channel, MARKER]
    leader, newcomer, record = DispatcherRing(), DispatcherRing(), Record()
    start = 1 + start % (len(channel) - 1)
    offers: list[tuple[int, bytes]] = []
    for place, (item, epoch) in enumerate(numbered(channel)):
        leader.epoch = newcomer.epoch = epoch
        offers += leader.receive(item)
        if place >= start:
            newcomer.receive(item)
    lead(record, offers, dies_after, 3)
    first = numbered(channel)[start - 1][1]  # the epoch that it received only in part
    rest, found = offers[dies_after:], unaccepted_of(newcomer.ring, record)
    assert [each for each in found if each[0] > first] == [each for each in rest if each[0] > first]
    assert not Counter(found) - Counter(rest), "nothing is accepted twice"
    received = contents(channel, start)[first]
    if len(set(contents(channel)[first])) == len(contents(channel)[first]):
        # Without equal payloads even the partial epoch is exact.
        missed = [payload for epoch, payload in rest if epoch == first and payload in received]
        assert [payload for epoch, payload in found if epoch == first] == missed


@given(channel=CHANNEL, places=st.integers(2, 5))
def test_each_unaccepted_message_belongs_to_one_partition(
    channel: list[bytes | None], places: int
) -> None:
    received = DispatcherRing()
    for item, epoch in numbered([MARKER, *channel]):
        received.epoch = epoch
        received.receive(item)
    found: Counter[tuple[int, bytes]] = Counter()
    for number in range(places):
        owns = partial(owned_by, number, places)
        part = received.ring.unaccepted({}, 0, owns)
        found.update((epoch, payload) for epoch, pairs in part for payload, _ in pairs)
    assert found == Counter(unaccepted_of(received.ring, {}))


@given(channel=CHANNEL, covered=st.integers(0, 12), forget=st.booleans())
def test_covered_epochs_have_no_unaccepted_messages(
    channel: list[bytes | None], covered: int, forget: bool
) -> None:
    received = DispatcherRing()
    for item, epoch in numbered([MARKER, *channel]):
        received.epoch = epoch
        received.receive(item)
    if forget:
        received.ring.drop_covered(covered)
    expected = contents([MARKER, *channel])
    assert unaccepted_of(received.ring, {}, covered) == [
        (epoch, payload)
        for epoch, payloads in expected.items()
        for payload in payloads
        if epoch >= covered
    ]
    assert received.ring.current == max(epoch for _, epoch in numbered([MARKER, *channel]))


def test_messages_before_the_first_marker_belong_to_the_epoch_before_it() -> None:
    ring = EpochRing(BIG, BIG)
    ring.add([b"a", b"b"])
    assert ring.current is None
    assert ring.epochs_from(0) == []
    assert ring.begin_epoch(8) == [b"a", b"b"]
    assert ring.current == 8
    assert ring.epochs_from(0) == [7, 8]
    assert unaccepted_of(ring, {}) == [(7, b"a"), (7, b"b")]
    assert ring.begin_epoch(9) == []


def test_a_gap_clears_the_ring() -> None:
    ring = EpochRing(BIG, BIG)
    ring.begin_epoch(3)
    ring.add([b"a"])
    ring.clear()
    assert (ring.current, ring.messages, ring.bytes) == (None, 0, 0)
    assert unaccepted_of(ring, {}) == []
    ring.add([b"b"])
    assert ring.begin_epoch(9) == [b"b"]
    assert unaccepted_of(ring, {}) == [(8, b"b")]


def test_digests_are_counted_over_all_batches() -> None:
    a, b = digest(b"a"), digest(b"b")
    assert len(a) == DIGEST_BYTES
    assert split_digests([a + b + a, b"", a]) == Counter({a: 3, b: 1})


@given(
    adds=st.lists(
        st.one_of(
            st.lists(st.integers(0, 12).map(bytes), max_size=30),
            st.just(MARKER),
            st.integers(0, 12),
        ),
        max_size=30,
    ),
    messages_max=st.integers(1, 20),
    bytes_max=st.integers(1, 60),
)
@pytest.mark.limit("ring_messages_max", "ring_bytes_max")
def test_the_ring_keeps_its_limits_and_counts_dropped_messages(
    adds: list[list[bytes] | int | None], messages_max: int, bytes_max: int
) -> None:
    ring = EpochRing(messages_max, bytes_max)
    epoch, added, covered = 0, 0, 0
    kept: list[bytes] = []
    for each in adds:
        if each is MARKER:
            epoch += 1
            ring.begin_epoch(epoch)
        elif isinstance(each, int):
            before = ring.messages
            ring.drop_covered(each)
            covered += before - ring.messages
        else:
            ring.add(each)
            added += len(each)
            kept += each
        assert ring.messages <= messages_max
        assert ring.bytes <= bytes_max
        assert ring.messages + ring.dropped + covered == added
    ring.begin_epoch(epoch + 1)
    left = [payload for _, payload in unaccepted_of(ring, {})]
    assert len(left) == ring.messages
    assert sum(map(len, left)) == ring.bytes
    assert left == kept[len(kept) - len(left) :], "the newest are kept"


@given(
    steps=st.lists(
        st.one_of(
            st.lists(st.just(b"x"), min_size=1, max_size=8), st.sampled_from(["mark", "gap"])
        ),
        max_size=30,
    ),
    messages_max=st.integers(1, 20),
)
def test_the_ring_reports_only_complete_epochs_as_complete(
    steps: list[list[bytes] | str], messages_max: int
) -> None:
    """Compared with all published messages; each gap loses one message."""
    ring = EpochRing(messages_max, BIG)
    epoch, published = 1, Counter[int]()
    ring.begin_epoch(1)
    for step in steps:
        if step == "mark":
            epoch += 1
            ring.begin_epoch(epoch)
        elif step == "gap":
            published[epoch] += 1
            ring.clear()
            epoch += 1
            ring.begin_epoch(epoch)
        else:
            published[epoch] += len(step)
            ring.add([*step])
        held = Counter(epoch for epoch, _ in unaccepted_of(ring, {}))
        for since in range(1, epoch + 1):
            if ring.complete_since(since):
                assert all(held[each] == published[each] for each in range(since, epoch + 1))
