"""The checker finds every kind of failure, and only those."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.history import History, Record, main

ROOT = Path(__file__).parents[2]


def history(*records: tuple[object, ...]) -> History:
    """Records without a time get the next millisecond."""
    made = History()
    made.extend(
        Record(kind, at_ms * 1_000_000, *rest)  # type: ignore[arg-type]
        for at_ms, (kind, *rest) in enumerate(records)
    )
    return made


def test_a_history_without_fault_is_good() -> None:
    verdict = history(
        ("sent", "1", "k"), ("sent", "2", "k"), ("received", "1", "k"), ("received", "2", "k")
    ).check()
    assert verdict.ok
    assert verdict.exit_status == 0
    assert (verdict.operations, verdict.received) == (2, 2)


def test_an_empty_history_is_not_good() -> None:
    verdict = History().check()
    assert not verdict.ok
    assert "EMPTY" in str(verdict)


def test_lost_doubled_and_unexpected_are_named() -> None:
    verdict = history(
        ("sent", "lost"),
        ("sent", "twice"),
        ("received", "twice"),
        ("received", "twice"),
        ("received", "twice"),
        ("received", "stranger"),
    ).check()
    assert (verdict.lost.count, verdict.lost.names) == (1, ("lost",))
    assert (verdict.doubled.count, verdict.doubled.names) == (1, ("twice",))
    assert verdict.unexpected.names == ("stranger",)
    assert verdict.exit_status == 1
    assert "BROKEN" in str(verdict)


def test_order_is_per_key_and_by_first_arrival() -> None:
    verdict = history(
        ("sent", "a1", "a"),
        ("sent", "a2", "a"),
        ("sent", "b1", "b"),
        ("received", "b1"),
        ("received", "a2"),
        ("received", "a1"),
        ("sent", "free1"),
        ("sent", "free2"),
        ("received", "free2"),
        ("received", "free1"),
    ).check()
    assert verdict.out_of_order.names == ("a1",)
    assert verdict.lost.count == verdict.doubled.count == 0


def test_positions_count_instead_of_the_time_of_receiving() -> None:
    records = [("sent", "1", "k"), ("sent", "2", "k")]
    late = [("received", "2", "k", 11), ("received", "1", "k", 10)]
    assert history(*records, *late).check().ok
    swapped = [("received", "1", "k", 11), ("received", "2", "k", 10)]
    assert history(*records, *swapped).check().out_of_order.names == ("1",)


def test_an_arrival_under_another_key_is_found() -> None:
    verdict = history(("sent", "1", "k"), ("received", "1", "other")).check()
    assert verdict.wrong_key.names == ("1",)
    assert not verdict.ok


def test_an_attempt_of_unknown_outcome_may_arrive_or_not() -> None:
    verdict = history(
        ("attempted", "1", "k"),
        ("attempted", "2", "k"),
        ("attempted", "3", "k"),
        ("sent", "3", "k"),
        ("received", "2"),
        ("received", "3"),
    ).check()
    assert verdict.ok
    assert (verdict.operations, verdict.unknown) == (1, 2)


def test_an_arrival_before_its_acknowledgement_is_neither_a_stall_nor_unexpected() -> None:
    verdict = history(("received", "1"), ("sent", "1"), ("fault", "kill")).check()
    assert verdict.ok
    assert verdict.longest_stall_ms == 0


def test_the_longest_stall_counts_only_while_something_is_outstanding() -> None:
    made = History()
    at_ms = [(0, "sent", "1"), (10, "received", "1"), (500, "sent", "2"), (530, "received", "2")]
    made.extend(Record(kind, at * 1_000_000, id) for at, kind, id in at_ms)  # type: ignore[arg-type]
    assert made.check().longest_stall_ms == 30
    assert made.check(stall_ms_max=30).ok
    verdict = made.check(stall_ms_max=29)
    assert not verdict.ok
    assert "STALLED" in str(verdict)


def test_what_never_came_stalls_until_the_end() -> None:
    made = History()
    made.extend([Record("sent", 0, "1"), Record("fault", 90_000_000, "pause")])
    assert made.check().longest_stall_ms == 90


def test_the_number_of_named_operations_is_limited() -> None:
    verdict = history(*[("sent", f"id-{n}") for n in range(5_000)], ("fault", "kill")).check()
    assert verdict.lost.count == 5_000
    assert len(verdict.lost.names) == 10
    table = str(verdict)
    assert "5,000" in table
    assert "kill 1" in table
    assert len(table.splitlines()) <= 12


def test_histories_of_several_processes_are_merged(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.kit.history import History\n"
        "with History(Path(sys.argv[1])) as history:\n"
        "    for n in range(200):\n"
        "        getattr(history, sys.argv[2])(str(n), sys.argv[3])\n"
    )
    together, apart = tmp_path / "together", tmp_path / "apart"
    for path, verb in [(together, "sent"), (together, "received"), (apart, "received")]:
        subprocess.run([sys.executable, "-c", program, path, verb, "k"], cwd=ROOT, check=True)
    assert History.read(together).check().ok
    both = History.read(together, apart).check()
    assert (both.operations, both.doubled.count) == (200, 200)


def test_a_torn_record_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with History(path) as one:
        one.sent("1")
        with path.open("ab") as torn:
            torn.write(b'\n["received",12')
        one.received("1")
    verdict = History.read(path).check()
    assert verdict.ok
    assert verdict.torn == 1


def test_one_append_per_record_so_that_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "history"
    writers = [History(path) for _ in range(3)]
    for number in range(300):
        writers[number % 3].sent(str(number))
        writers[number % 3].received(str(number))
    assert writers[0].check().operations == 300
    for writer in writers:
        writer.close()
    with pytest.raises(ValueError, match="closed"):
        writers[0].sent("late")


def test_the_command_prints_the_table_and_exits_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history"
    with History(path) as made:
        made.sent("1")
        made.received("1")
        assert main([str(path)]) == 0
        assert "verdict" in capsys.readouterr().out
        made.received("1")
    assert main([str(path)]) == 1
    assert main([str(tmp_path / "missing")]) == 2
    assert main([str(path), "--stall-ms-max", "0"]) == 1


def test_a_hundred_thousand_operations_are_checked_in_seconds() -> None:
    made = History()
    made.extend(
        Record(kind, n, str(n), str(n % 50))
        for n in range(100_000)
        for kind in ("sent", "received")
    )
    start = time.process_time()
    assert made.check().ok
    assert time.process_time() - start < 5


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=30),
    st.integers(0, 29),
)
def test_a_plan_of_damage_is_found_exactly(keys: list[str], at: int) -> None:
    """Send in order; deliver in order per key but mixed between keys; lose one, double one."""
    ids = [f"{number}" for number in range(len(keys))]
    victim = ids[at % len(ids)]
    sent = [("sent", id, key) for id, key in zip(ids, keys, strict=True)]
    arrivals = [("received", id, key) for id, key in zip(ids, keys, strict=True)]
    arrivals.sort(key=lambda record: record[2])  # stable: the order inside a key stays
    assert history(*sent, *arrivals).check().ok
    without = [record for record in arrivals if record[1] != victim]
    assert history(*sent, *without).check().lost.names == (victim,)
    again = [*arrivals, ("received", victim)]
    verdict = history(*sent, *again).check()
    assert verdict.doubled.names == (victim,)
    assert verdict.out_of_order.count == verdict.lost.count == 0
