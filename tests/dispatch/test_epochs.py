"""What nobody accepted is found exactly, wherever leaders die and however alike messages are.

The channel is a list of messages and marks. Every dispatcher hears all of it in the same order,
from the place where it began to listen. Accepting is a record of digests under an epoch, which is
all that one leader leaves to the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from angarium.dispatch.epochs import DIGEST_BYTES, Ring, digest, split_digests

MARK = None
# Few different payloads, so that equal ones meet in an epoch and across epochs.
CHANNEL = st.lists(st.one_of(st.sampled_from([b"a", b"a", b"b", b"c"]), st.just(MARK)), max_size=40)
BIG = 1_000_000

Record = dict[int, list[bytes]]
"""What is in Redis: for each epoch, the digests of each batch."""


def all_ours(_: bytes) -> bool:
    return True


@dataclass
class Heard:
    """One dispatcher's ring, and which epoch it is told each message belongs to."""

    ring: Ring = field(default_factory=lambda: Ring(BIG, BIG))
    epoch: int = 0

    def hear(self, item: bytes | None) -> list[tuple[int, bytes]]:
        """What a leader is offered now: epoch and payload of each."""
        if item is MARK:
            before = self.ring.mark(self.epoch)
            return [(self.epoch - 1, payload) for payload in before]
        assert item is not None
        self.ring.add([item])
        return [] if self.ring.current is None else [(self.ring.current, item)]


def numbered(channel: list[bytes | None]) -> list[tuple[bytes | None, int]]:
    """Each item with the epoch that holds after it; the first mark is 1, as in Redis."""
    epoch, found = 0, []
    for item in channel:
        epoch += item is MARK
        found.append((item, epoch))
    return found


def accepted(record: Record) -> dict[int, Counter[bytes]]:
    return {epoch: split_digests(batches) for epoch, batches in record.items()}


def write(record: Record, epoch: int, payloads: list[bytes]) -> None:
    record.setdefault(epoch, []).append(b"".join(map(digest, payloads)))


def lead(record: Record, offers: list[tuple[int, bytes]], count: int, batch: int) -> None:
    """Accept the first `count` of what was offered, in batches of one epoch each."""
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


def missing_of(ring: Ring, record: Record, covered: int = 0) -> list[tuple[int, bytes]]:
    found = ring.missing(accepted(record), covered, all_ours)
    for _, pairs in found:
        assert all(digest(payload) == mark for payload, mark in pairs)
    return [(epoch, payload) for epoch, pairs in found for payload, _ in pairs]


def contents(channel: list[bytes | None], start: int = 0) -> dict[int, list[bytes]]:
    """What each epoch holds, as far as it was heard from `start` on."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for item, epoch in numbered(channel)[start:]:
        if item is not None:
            found[epoch].append(item)
    return found


def counted(record: Record) -> dict[int, Counter[bytes]]:
    return {epoch: count for epoch, count in accepted(record).items() if count}


@given(channel=CHANNEL, dies_after=st.integers(0, 40), batch=st.integers(1, 5))
def test_what_a_dead_leader_did_not_accept_is_missing_and_nothing_else(
    channel: list[bytes | None], dies_after: int, batch: int
) -> None:
    leader, standby = Heard(), Heard()
    offers: list[tuple[int, bytes]] = []
    for item, epoch in [(MARK, 1), *((i, e + 1) for i, e in numbered(channel))]:
        leader.epoch = standby.epoch = epoch
        offers += leader.hear(item)
        standby.hear(item)
    record: Record = {}
    lead(record, offers, dies_after, batch)
    assert missing_of(standby.ring, record) == offers[dies_after:]


@given(channel=CHANNEL, chosen=st.lists(st.booleans(), min_size=40, max_size=40))
def test_whatever_part_was_accepted_the_rest_is_missing(
    channel: list[bytes | None], chosen: list[bool]
) -> None:
    """Two batches may be under way at once, so what is accepted need not be a beginning."""
    heard, record = Heard(), Record()
    taken: Counter[tuple[int, bytes]] = Counter()
    for (item, epoch), take in zip(numbered([MARK, *channel]), [False, *chosen], strict=False):
        heard.epoch = epoch
        heard.hear(item)
        if item is not None and take:
            write(record, epoch, [item])
            taken[epoch, item] += 1
    every = Counter((epoch, p) for epoch, ps in contents([MARK, *channel]).items() for p in ps)
    assert Counter(missing_of(heard.ring, record)) + taken == every


@given(
    channel=CHANNEL,
    deaths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=4),
    batch=st.integers(1, 4),
)
def test_any_row_of_leaders_accepts_everything_once(
    channel: list[bytes | None], deaths: list[tuple[int, int]], batch: int
) -> None:
    """Each death: at which place of the channel, and how much of its queue was then accepted."""
    dispatchers = [Heard() for _ in range(len(deaths) + 1)]
    record: Record = {}
    queue: list[tuple[int, bytes]] = []
    leader = 0
    dying = dict(sorted(deaths))
    for place, (item, epoch) in enumerate(numbered([MARK, *channel])):
        for number, each in enumerate(dispatchers):
            each.epoch = epoch
            offered = each.hear(item)
            if number == leader:
                queue += offered
        if place in dying and leader + 1 < len(dispatchers):
            lead(record, queue, dying[place], batch)
            leader += 1
            queue = missing_of(dispatchers[leader].ring, record)
    lead(record, queue, len(queue), batch)
    expected = {epoch: Counter(map(digest, ps)) for epoch, ps in contents([MARK, *channel]).items()}
    assert counted(record) == expected


@given(
    channel=CHANNEL,
    start=st.integers(0, 40),
    dies_after=st.integers(0, 40),
)
def test_who_began_to_listen_within_an_epoch_never_doubles_and_finds_the_whole_epochs(
    channel: list[bytes | None], start: int, dies_after: int
) -> None:
    channel = [MARK, *channel, MARK]
    leader, newcomer, record = Heard(), Heard(), Record()
    start = 1 + start % (len(channel) - 1)
    offers: list[tuple[int, bytes]] = []
    for place, (item, epoch) in enumerate(numbered(channel)):
        leader.epoch = newcomer.epoch = epoch
        offers += leader.hear(item)
        if place >= start:
            newcomer.hear(item)
    lead(record, offers, dies_after, 3)
    first = numbered(channel)[start - 1][1]  # the epoch it came into, and heard a part of
    rest, found = offers[dies_after:], missing_of(newcomer.ring, record)
    assert [each for each in found if each[0] > first] == [each for each in rest if each[0] > first]
    assert not Counter(found) - Counter(rest), "nothing is accepted twice"
    heard = contents(channel, start)[first]
    if len(set(contents(channel)[first])) == len(contents(channel)[first]):
        # Where no two are alike, even the part is exact.
        missed = [payload for epoch, payload in rest if epoch == first and payload in heard]
        assert [payload for epoch, payload in found if epoch == first] == missed


@given(channel=CHANNEL, places=st.integers(2, 5))
def test_partitions_share_out_what_is_missing(channel: list[bytes | None], places: int) -> None:
    heard = Heard()
    for item, epoch in numbered([MARK, *channel]):
        heard.epoch = epoch
        heard.hear(item)
    found: Counter[tuple[int, bytes]] = Counter()
    for number in range(places):
        part = heard.ring.missing({}, 0, lambda mark, number=number: mark[0] % places == number)  # type: ignore[misc]
        found.update((epoch, payload) for epoch, pairs in part for payload, _ in pairs)
    assert found == Counter(missing_of(heard.ring, {}))


@given(channel=CHANNEL, covered=st.integers(0, 12), forget=st.booleans())
def test_what_is_covered_is_never_missing(
    channel: list[bytes | None], covered: int, forget: bool
) -> None:
    heard = Heard()
    for item, epoch in numbered([MARK, *channel]):
        heard.epoch = epoch
        heard.hear(item)
    if forget:
        heard.ring.cover(covered)
    expected = contents([MARK, *channel])
    assert missing_of(heard.ring, {}, covered) == [
        (epoch, payload)
        for epoch, payloads in expected.items()
        for payload in payloads
        if epoch >= covered
    ]
    assert heard.ring.current == max(epoch for _, epoch in numbered([MARK, *channel]))


def test_before_the_first_mark_an_epoch_has_no_name() -> None:
    ring = Ring(BIG, BIG)
    ring.add([b"a", b"b"])
    assert ring.current is None
    assert ring.epochs_from(0) == []
    assert ring.mark(8) == [b"a", b"b"]
    assert ring.current == 8
    assert ring.epochs_from(0) == [7, 8]
    assert missing_of(ring, {}) == [(7, b"a"), (7, b"b")]
    assert ring.mark(9) == []


def test_after_something_was_missed_nothing_is_known() -> None:
    ring = Ring(BIG, BIG)
    ring.mark(3)
    ring.add([b"a"])
    ring.forget_all()
    assert (ring.current, ring.messages, ring.bytes) == (None, 0, 0)
    assert missing_of(ring, {}) == []
    ring.add([b"b"])
    assert ring.mark(9) == [b"b"]
    assert missing_of(ring, {}) == [(8, b"b")]


def test_digests_are_counted_over_all_batches() -> None:
    a, b = digest(b"a"), digest(b"b")
    assert len(a) == DIGEST_BYTES
    assert split_digests([a + b + a, b"", a]) == Counter({a: 3, b: 1})


@given(
    adds=st.lists(
        st.one_of(
            st.lists(st.integers(0, 12).map(bytes), max_size=30),
            st.just(MARK),
            st.integers(0, 12),
        ),
        max_size=30,
    ),
    messages_max=st.integers(1, 20),
    bytes_max=st.integers(1, 60),
)
def test_the_bounds_hold_and_what_is_given_up_is_counted(
    adds: list[list[bytes] | int | None], messages_max: int, bytes_max: int
) -> None:
    ring = Ring(messages_max, bytes_max)
    epoch, added, covered = 0, 0, 0
    kept: list[bytes] = []
    for each in adds:
        if each is MARK:
            epoch += 1
            ring.mark(epoch)
        elif isinstance(each, int):
            before = ring.messages
            ring.cover(each)
            covered += before - ring.messages
        else:
            ring.add(each)
            added += len(each)
            kept += each
        assert ring.messages <= messages_max
        assert ring.bytes <= bytes_max
        assert ring.messages + ring.dropped + covered == added
    ring.mark(epoch + 1)
    left = [payload for _, payload in missing_of(ring, {})]
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
def test_a_ring_says_whole_only_of_what_it_holds_whole(
    steps: list[list[bytes] | str], messages_max: int
) -> None:
    """Against everything that was published, in a world where a gap loses one message."""
    ring = Ring(messages_max, BIG)
    epoch, published = 1, Counter[int]()
    ring.mark(1)
    for step in steps:
        if step == "mark":
            epoch += 1
            ring.mark(epoch)
        elif step == "gap":
            published[epoch] += 1
            ring.forget_all()
            epoch += 1
            ring.mark(epoch)
        else:
            published[epoch] += len(step)
            ring.add([*step])
        held = Counter(epoch for epoch, _ in missing_of(ring, {}))
        for since in range(1, epoch + 1):
            if ring.whole_since(since):
                assert all(held[each] == published[each] for each in range(since, epoch + 1))
