"""Rates, notices and page cursors, computed from plain values."""

from __future__ import annotations

import pytest

from angarium.conversations.overview import conversations_notices
from angarium.conversations.wait_reasons import SenderWait
from angarium.dispatch.overview import dispatch_notices
from angarium.routing.overview import routing_notices
from angarium.runtime.errors import InputInvalid
from angarium.runtime.page_cursor import cursor_numbers, page_cursor
from angarium.runtime.process_report import ProcessReport
from angarium.server.dashboard.overview import _lake_notices
from angarium.server.dashboard.rates import Rates
from angarium.transactions.overview import transactions_notices
from angarium.transactions.queries import AwaitedStep


def node(actor: str, at_ms: int, **figures: float) -> ProcessReport:
    return ProcessReport("node", actor, "host", 1, dict(figures), at_ms)


def test_a_rate_is_the_difference_between_two_reports_of_a_process() -> None:
    rates = Rates()
    first = rates.update([node("a", 1_000, taken=10)], 0, 1_000)
    assert first["transactions.started"] == 0, "one report gives no rate"
    second = rates.update([node("a", 3_000, taken=50), node("b", 3_000, taken=900)], 0, 3_000)
    assert second["transactions.started"] == 20, "the first report of a process gives no rate"
    same = rates.update([node("a", 3_000, taken=50), node("b", 3_000, taken=900)], 0, 4_000)
    assert same["transactions.started"] == 20, "no new report"
    gone = rates.update([node("b", 5_000, taken=910)], 0, 5_000)
    assert gone["transactions.started"] == 5


def test_a_process_that_counts_from_zero_again_has_no_negative_rate() -> None:
    rates = Rates()
    rates.update([node("a", 1_000, taken=500)], 0, 1_000)
    assert rates.update([node("a", 2_000, taken=3)], 0, 2_000)["transactions.started"] == 0


def test_all_kinds_of_ends_are_one_rate_and_text_values_are_ignored() -> None:
    rates = Rates()
    rates.update([node("a", 1_000, ended_success=0, ended_failed=0)], 0, 1_000)
    report = ProcessReport(
        "node", "a", "host", 1, {"ended_success": 6.0, "ended_failed": 2.0, "taken": "many"}, 3_000
    )
    found = rates.update([report], 0, 3_000)
    assert found["transactions.completed"] == 4
    assert found["transactions.started"] == 0


def test_the_journals_rate_follows_its_count_also_after_a_reset() -> None:
    rates = Rates()
    assert rates.update([], 1_000, 1_000)["journal.events"] == 0
    assert rates.update([], 1_500, 3_000)["journal.events"] == 250
    assert rates.update([], 10, 4_000)["journal.events"] == 250
    assert rates.update([], 20, 5_000)["journal.events"] == 10


DISPATCH_FACTS = {"without_leader": 0, "consumers": 1, "dead": 0, "lost": 0}
ROUTING_FACTS = {"unowned": 0, "silent": 0, "dead_outbound": 0, "dead_inbound": 0}
TRANSACTION_FACTS = {"queued": 0, "webhooks": 0, "dead": 0, "failed": 0, "silent_nodes": 0}


@pytest.mark.parametrize(
    ("facts", "waiting", "level", "text"),
    [
        ({"without_leader": 1}, 2, "trouble", "1 partition without a leader"),
        ({"consumers": 0}, 2, "trouble", "2 messages and no worker"),
        ({"dead": 3}, 0, "warning", "3 dead letters"),
        ({"lost": 2}, 0, "warning", "2 published messages lost"),
    ],
)
def test_a_problem_in_dispatch_is_a_notice(
    facts: dict[str, int], waiting: int, level: str, text: str
) -> None:
    assert not [*dispatch_notices(DISPATCH_FACTS, waiting)]
    (found,) = dispatch_notices(DISPATCH_FACTS | facts, waiting)
    assert (found.module, found.level) == ("dispatch", level)
    assert found.text.startswith(text)
    assert found.hint


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        ({"unowned": 1}, "trouble", "1 recipient key with mail and no owner"),
        ({"silent": 2}, "warning", "2 instances silent"),
        ({"dead_outbound": 2}, "warning", "2 deliveries given up"),
        ({"dead_inbound": 1}, "warning", "1 inbound message that no instance"),
    ],
)
def test_a_problem_in_routing_is_a_notice(facts: dict[str, int], level: str, text: str) -> None:
    assert not [*routing_notices(ROUTING_FACTS)]
    (found,) = routing_notices(ROUTING_FACTS | facts)
    assert (found.module, found.level) == ("routing", level)
    assert found.text.startswith(text)
    assert found.hint


def test_a_step_without_a_node_for_five_seconds_is_trouble() -> None:
    steps = [AwaitedStep("default", "notify", 3, 5_000), AwaitedStep("g2", "debit", 1, 4_999)]
    (found,) = transactions_notices(TRANSACTION_FACTS, steps, set())
    assert (found.module, found.level) == ("transactions", "trouble")
    assert found.text == "3 transactions waiting for a node with step 'notify' (default)"


def test_work_without_a_process_is_trouble() -> None:
    facts = {"queued": 1, "webhooks": 2, "dead": 3, "failed": 0, "silent_nodes": 1}
    found = [*transactions_notices(facts, (), set())]
    assert [each.level for each in found] == ["trouble", "trouble", "warning", "warning"]
    dead, silent = transactions_notices(facts, (), {"node", "webhooks"})
    assert (dead.text, silent.text) == ("3 dead letters", "1 node silent")
    (found_reply,) = conversations_notices(2, 0, (), set())
    assert found_reply.text == "2 replies in flight and no process sends them"
    assert not [*conversations_notices(2, 0, (), {"conversations"})]
    (letter,) = conversations_notices(0, 2, (), {"conversations"})
    assert letter.text == "2 replies not sent: dead letters"


def test_failed_transactions_are_a_notice_with_a_link_to_them() -> None:
    facts = {**TRANSACTION_FACTS, "dead": 1, "failed": 2}
    _, failed = transactions_notices(facts, (), {"node"})
    assert (failed.text, failed.page) == (
        "2 transactions failed lately",
        "transactions?status=failed",
    )
    (many,) = transactions_notices({**TRANSACTION_FACTS, "failed": 100}, (), {"node"})
    assert many.text.startswith("at least 100 transactions")


def test_a_lake_that_stopped_is_trouble_with_its_reason() -> None:
    stopped = {"state": "failed", "reason": "Java is missing"}
    reports = [ProcessReport("lake", "a", "host", 1, {**stopped}, 1_000)]
    (notice,) = _lake_notices(reports)
    assert (notice.module, notice.level) == ("lake", "trouble")
    assert notice.text.endswith("Java is missing")
    assert not [*_lake_notices([ProcessReport("lake", "a", "host", 1, {"state": "running"}, 1)])]


def test_only_page_cursors_of_this_form_are_accepted() -> None:
    assert cursor_numbers(page_cursor(3, 2**64 - 1), 2) == (3, 2**64 - 1)
    assert cursor_numbers(None, 3) == (0, 0, 0)
    for wrong in ("", "1", "1:2:3", "1:-2", "1:x", "1:٣", f"1:{2**64}", "1:" + "9" * 400):
        with pytest.raises(InputInvalid, match="is not a page cursor"):
            cursor_numbers(wrong, 2)


def test_replies_that_wait_for_a_sender_are_trouble() -> None:
    needs = [SenderWait(("web", "default"), 3, 1)]
    (found,) = conversations_notices(3, 0, needs, {"conversations"})
    assert (found.module, found.level) == ("conversations", "trouble")
    assert found.text == "3 replies waiting for a process with sender 'web' or 'default'"
