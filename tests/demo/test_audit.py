"""The demo's audit counts lost, doubled and out-of-order messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from angarium.demo.audit import AuditResult, JournalAudit, percentiles
from angarium.runtime.journal import Event, JournalEntry

Row = tuple[str, str, str, dict[str, Any]]


def journal_rows(messages: int = 2) -> list[Row]:
    """Events of one user's messages with two replies each, all picked up."""
    rows: list[Row] = []
    for number in range(messages):
        message = f"m{number}"
        rows += [
            ("dispatch", "accepted", message, {}),
            ("conversations", "requested", message, {"key": "anna"}),
            ("transactions", "started", f"t{number}", {}),
        ]
    for number in range(messages):
        for reply in (f"r{number}a", f"r{number}b"):
            rows += [
                ("conversations", "accepted", reply, {"key": "anna", "detail": f"m{number}"}),
                ("conversations", "taken", reply, {"key": "anna"}),
                ("pickup", "accepted", f"l{reply}", {"key": "default:anna", "detail": reply}),
                ("conversations", "delivered", reply, {"key": "anna"}),
            ]
    rows += [
        ("pickup", "delivered", f"lr{number}{suffix}", {"key": "default:anna"})
        for number in range(messages)
        for suffix in "ab"
    ]
    return rows


def audit(rows: Iterable[Row], published: int = 2) -> AuditResult:
    journal_audit = JournalAudit()
    for at, (module, event, subject, more) in enumerate(rows):
        journal_audit.read(
            JournalEntry(f"{at}-0", module, at, "a", at, [Event(event, subject, **more)])
        )
    return journal_audit.result(published, 2)


def test_a_complete_run_is_clean() -> None:
    found = audit(journal_rows())
    assert found.clean
    assert (found.accepted, found.delivered, found.replies) == (2, 2, 4)


def test_a_reply_that_was_not_picked_up_is_a_lost_message() -> None:
    found = audit(journal_rows()[:-1])
    assert (found.delivered, found.lost) == (1, 1)
    assert not found.clean
    assert found.examples == ["m1"]


def test_a_message_that_was_published_and_never_accepted_is_lost() -> None:
    found = audit(journal_rows(1), published=2)
    assert (found.accepted, found.delivered, found.lost) == (1, 1, 1)
    assert not found.clean


def test_an_event_that_happens_twice_is_doubled() -> None:
    rows = journal_rows()
    for twice in (rows[0], rows[1], rows[-1], ("transactions", "started", "t9", {})):
        assert audit([*rows, twice]).doubled == 1, twice
    queued = next(each for each in rows if each[:2] == ("pickup", "accepted"))
    assert audit([*rows, queued]).doubled == 1


def test_a_message_with_a_third_reply_is_not_delivered() -> None:
    more: Row = ("conversations", "accepted", "r0c", {"key": "anna", "detail": "m0"})
    found = audit([*journal_rows(), more])
    assert found.delivered == 1


def two_requests(*events: str) -> list[Row]:
    """Requests m0 and m1 of one user, then events of their replies: `accepted r0a`, …"""
    rows = [row for row in journal_rows() if row[2] in ("m0", "m1", "t0", "t1")]
    for each in events:
        event, reply = each.split()
        if event == "put":
            row: Row = ("pickup", "accepted", f"l{reply}", {"key": "default:anna", "detail": reply})
        else:
            detail = f"m{reply[1]}" if event == "accepted" else None
            row = ("conversations", event, reply, {"key": "anna", "detail": detail})
        rows.append(row)
    return rows


def test_a_reply_that_a_later_one_overtook_is_out_of_order() -> None:
    rows = two_requests("accepted r0a", "accepted r1a", "taken r1a", "put r1a", "put r0a")
    found = audit(rows)
    assert found.out_of_order == 1
    assert found.examples[-1] == "r0a"
    assert not found.clean


def test_a_reply_accepted_before_a_later_ones_turn_goes_first() -> None:
    rows = two_requests(
        "accepted r1a", "taken r1a", "accepted r0a", "taken r0a", "put r0a", "accepted r0b",
        "delivered r0a", "put r1a", "put r0b",
    )  # fmt: skip
    assert audit(rows).out_of_order == 1


def test_a_reply_accepted_after_a_later_one_was_sent_is_in_order() -> None:
    rows = two_requests(
        "accepted r0a", "taken r0a", "put r0a", "delivered r0a", "accepted r1a", "taken r1a",
        "put r1a", "delivered r1a", "accepted r0b", "taken r0b", "put r0b",
    )  # fmt: skip
    assert audit(rows).out_of_order == 0


def test_messages_received_out_of_the_queues_order_are_counted() -> None:
    journal_audit = JournalAudit()
    for at, (module, event, subject, more) in enumerate(journal_rows()):
        journal_audit.read(
            JournalEntry(f"{at}-0", module, at, "a", at, [Event(event, subject, **more)])
        )
    queue = ["lr0a", "lr0b", "lr1a", "lr1b"]
    assert journal_audit.seen_out_of_order("default:anna", queue) == 0
    assert journal_audit.seen_out_of_order("default:anna", ["lr0b", "lr0a", "lr1a", "lr1b"]) == 1
    assert journal_audit.seen_out_of_order("default:anna", ["lr0a", "lr1a"]) == 0


def test_percentiles_are_measured_values() -> None:
    found = percentiles([float(each) for each in range(1, 101)])
    assert (found.p50, found.p95, found.p99, found.max) == (50.0, 95.0, 99.0, 100.0)
    assert percentiles([7.0]).p99 == 7.0
