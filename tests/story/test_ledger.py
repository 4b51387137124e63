"""The balance of the story: it sees what is missing, what is there twice, what came too early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from angarium.demo.ledger import Audit, Ledger, percentiles
from angarium.runtime.journal import Entry, Event

Row = tuple[str, str, str, dict[str, Any]]


def story(messages: int = 2) -> list[Row]:
    """Messages of one user, two replies each, all picked up."""
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
        ("pickup", "delivered", f"lr{number}{letter}", {"key": "default:anna"})
        for number in range(messages)
        for letter in "ab"
    ]
    return rows


def audit(rows: Iterable[Row], published: int = 2) -> Audit:
    ledger = Ledger()
    for at, (module, event, subject, more) in enumerate(rows):
        ledger.read(Entry(f"{at}-0", module, at, "a", at, [Event(event, subject, **more)]))
    return ledger.verdict(published, 2)


def test_a_story_in_which_nothing_went_wrong_is_clean() -> None:
    found = audit(story())
    assert found.clean
    assert (found.accepted, found.delivered, found.replies) == (2, 2, 4)


def test_a_reply_that_was_not_picked_up_is_a_lost_message() -> None:
    found = audit(story()[:-1])
    assert (found.delivered, found.lost) == (1, 1)
    assert not found.clean
    assert found.examples == ["m1"]


def test_a_message_that_was_published_and_never_accepted_is_lost() -> None:
    found = audit(story(1), published=2)
    assert (found.accepted, found.delivered, found.lost) == (1, 1, 1)
    assert not found.clean


def test_what_happened_twice_is_doubled() -> None:
    rows = story()
    for twice in (rows[0], rows[1], rows[-1], ("transactions", "started", "t9", {})):
        assert audit([*rows, twice]).doubled == 1, twice
    letter = next(each for each in rows if each[:2] == ("pickup", "accepted"))
    assert audit([*rows, letter]).doubled == 1


def test_a_third_reply_is_no_delivery() -> None:
    more: Row = ("conversations", "accepted", "r0c", {"key": "anna", "detail": "m0"})
    found = audit([*story(), more])
    assert found.delivered == 1


def two_requests(*events: str) -> list[Row]:
    """Requests m0 and m1 of one user, then what happens to their replies: `accepted r0a`, …"""
    rows = [row for row in story() if row[2] in ("m0", "m1", "t0", "t1")]
    for each in events:
        event, reply = each.split()
        if event == "put":
            row: Row = ("pickup", "accepted", f"l{reply}", {"key": "default:anna", "detail": reply})
        else:
            detail = f"m{reply[1]}" if event == "accepted" else None
            row = ("conversations", event, reply, {"key": "anna", "detail": detail})
        rows.append(row)
    return rows


def test_a_reply_whose_turn_was_given_before_an_earlier_one_is_out_of_order() -> None:
    rows = two_requests("accepted r0a", "accepted r1a", "taken r1a", "put r1a", "put r0a")
    found = audit(rows)
    assert found.out_of_order == 1
    assert found.examples[-1] == "r0a"
    assert not found.clean


def test_a_reply_that_waited_in_memory_must_look_again_when_its_turn_comes() -> None:
    rows = two_requests(
        "accepted r1a", "taken r1a", "accepted r0a", "taken r0a", "put r0a", "accepted r0b",
        "delivered r0a", "put r1a", "put r0b",
    )  # fmt: skip
    assert audit(rows).out_of_order == 1


def test_a_reply_that_was_made_too_late_to_go_first_is_in_order() -> None:
    rows = two_requests(
        "accepted r0a", "taken r0a", "put r0a", "delivered r0a", "accepted r1a", "taken r1a",
        "put r1a", "delivered r1a", "accepted r0b", "taken r0b", "put r0b",
    )  # fmt: skip
    assert audit(rows).out_of_order == 0


def test_what_a_recipient_saw_is_compared_with_its_queue() -> None:
    ledger = Ledger()
    for at, (module, event, subject, more) in enumerate(story()):
        ledger.read(Entry(f"{at}-0", module, at, "a", at, [Event(event, subject, **more)]))
    queue = ["lr0a", "lr0b", "lr1a", "lr1b"]
    assert ledger.seen_out_of_order("default:anna", queue) == 0
    assert ledger.seen_out_of_order("default:anna", ["lr0b", "lr0a", "lr1a", "lr1b"]) == 1
    assert ledger.seen_out_of_order("default:anna", ["lr0a", "lr1a"]) == 0


def test_percentiles_are_values_that_were_measured() -> None:
    found = percentiles([float(each) for each in range(1, 101)])
    assert (found.p50, found.p95, found.p99, found.max) == (50.0, 95.0, 99.0, 100.0)
    assert percentiles([7.0]).p99 == 7.0
