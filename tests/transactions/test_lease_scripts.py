"""The scripts that lease work: transactions to archive, webhooks to send, and the roles."""

from __future__ import annotations

from typing import Any

from angarium.runtime.lease import GrantStatus
from angarium.transactions import keys
from angarium.transactions.leases import HolderState, WebhookResult
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.transactions.harness import harness

HOOK = "https://example.org/hook"


async def test_nothing_leaves_redis_before_it_is_reported_as_stored(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        ids = await here.completed(3)
        assert (await here.leases.to_archive(0, "a", [], 10)).transactions == []
        await clock.advance(1_200)
        for _ in range(2):
            due = await here.leases.to_archive(0, "a", [], 10)
            assert due.grant in (GrantStatus.GRANTED, GrantStatus.WORKING)
            assert [each.id for each in due.transactions] == ids
        other = await here.leases.to_archive(0, "b", [], 10)
        assert (other.grant, list(other.transactions)) == (GrantStatus.REFUSED, [])
        due = await here.leases.to_archive(0, "a", [*ids[:2], "ghost"], 10)
        assert [each.id for each in due.transactions] == ids[2:]
        assert await here.store.find(ids[0]) is None
        assert await here.event_names(ids[0]) == ["started", "taken", "completed", "archived"]


async def test_only_ended_transactions_can_be_reported_as_stored(redis_url: str) -> None:
    async with harness(redis_url) as here:
        id = await here.start()
        await here.leases.to_archive(0, "a", [id], 0)
        assert (await here.state(id)).status == "queued"


async def test_a_transaction_with_a_due_webhook_is_not_archived(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock, transactions={"delay_before_archiving": 0}) as here:
        (id,) = await here.completed(webhook=HOOK)
        assert (await here.leases.to_archive(0, "a", [], 10)).transactions == []
        due = await here.leases.webhooks(0, "w", [], 10)
        await here.leases.webhooks(0, "w", [WebhookResult(id, due.webhooks[0].version)], 0)
        await clock.advance(60)
        assert [e.id for e in (await here.leases.to_archive(0, "a", [], 10)).transactions] == [id]


async def test_leasing_a_webhook_schedules_its_next_attempt(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        (id,) = await here.completed(webhook=HOOK)
        pauses = []
        for attempt in range(1, 9):
            due = await here.leases.webhooks(0, "w", [], 10)
            (webhook,) = due.webhooks
            assert (webhook.url, webhook.attempt) == (HOOK, attempt)
            assert (await here.leases.webhooks(0, "w", [], 10)).webhooks == []
            score = await here.score(keys.WEBHOOKS, id)
            assert score is not None
            pauses.append((score - clock.now_ms()) / 15_000 / 1.8 ** (attempt - 1))
            clock.jump(int(score) - clock.now_ms())
        assert all(0.89 < pause < 1.11 for pause in pauses), pauses
        due = await here.leases.webhooks(0, "w", [], 10)
        assert [(each.what, each.transaction_id) for each in due.alerts] == [("given_up", id)]
        assert await here.score(keys.WEBHOOKS, id) is None
        assert (await here.state(id)).webhook_given_up_ms is not None


async def test_a_delivered_webhook_is_removed_and_a_newer_report_stays(redis_url: str) -> None:
    async with harness(redis_url) as here:
        taken = await here.taken(webhook=HOOK, progress_reports=True)
        await here.store.report_progress(taken.id, "1", b"1")
        (first,) = (await here.leases.webhooks(0, "w", [], 10)).webhooks
        await here.store.complete(taken, "success", b"", "")
        done = [WebhookResult(taken.id, first.version)]
        due = await here.leases.webhooks(0, "w", done, 10)
        (second,) = due.webhooks
        assert second.transaction.status == "success"
        done = [WebhookResult(taken.id, second.version), WebhookResult("ghost", "1")]
        assert (await here.leases.webhooks(0, "w", done, 10)).webhooks == []
        assert (await here.state(taken.id)).webhook_delivered_ms is not None
        assert (await here.event_names(taken.id)).count("webhook_delivered") == 1


async def test_a_url_that_keeps_failing_is_disabled_and_the_administrator_alerted(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        ids = await here.completed(12, webhook=HOOK)
        due = await here.leases.webhooks(0, "w", [], 12)
        results = [WebhookResult(each.transaction.id, each.version, "no") for each in due.webhooks]
        alerts = (await here.leases.webhooks(0, "w", results[:9], 10)).alerts
        assert alerts == []
        alerts = (await here.leases.webhooks(0, "w", results[9:], 10)).alerts
        assert [(each.what, each.url) for each in alerts] == [("disabled", HOOK)]
        await clock.advance(30)
        assert (await here.leases.webhooks(0, "w", [], 20)).webhooks == []
        state = await here.state(ids[0])
        assert (state.webhook_tries, state.webhook_error) == (1, "no")
        score = await here.score(keys.WEBHOOKS, ids[0])
        assert score is not None
        assert score > clock.now_ms() + 200_000
        (other,) = await here.completed(webhook="https://example.org/other")
        (webhook,) = (await here.leases.webhooks(0, "w", [], 20)).webhooks
        assert webhook.transaction.id == other


async def test_the_last_failed_attempt_alerts_the_administrator(redis_url: str) -> None:
    settings = {"max_webhook_retries": 1}
    async with harness(redis_url, transactions=settings) as here:
        (id,) = await here.completed(webhook=HOOK)
        (webhook,) = (await here.leases.webhooks(0, "w", [], 10)).webhooks
        failed = [WebhookResult(id, webhook.version, "status 500")]
        due = await here.leases.webhooks(0, "w", failed, 10)
        assert [each.what for each in due.alerts] == ["given_up"]
        assert (await here.leases.webhooks(0, "other", [], 10)).grant is GrantStatus.REFUSED


async def test_an_archivers_reply_is_bounded_in_bytes(redis_url: str) -> None:
    async with harness(redis_url, transactions={"delay_before_archiving": 0}) as here:
        output = b'"' + b"x" * 1_000_000 + b'"'
        for _ in range(30):
            await here.store.complete(await here.taken(), "success", output, "")
        leased = (await here.leases.to_archive(0, "a", [], 100)).transactions
        assert 10 <= len(leased) <= 20
        ids = [each.id for each in leased]
        rest = (await here.leases.to_archive(0, "a", ids, 100)).transactions
        assert len(rest) == 30 - len(leased)


async def test_a_holder_without_open_work_needs_no_grace_period(redis_url: str) -> None:
    locks = {"persisting_permission_lock1_period": 1, "persisting_permission_lock2_period": 60}
    async with harness(redis_url, transactions=locks) as here:

        async def archive(node: str, state: HolderState = "") -> str:
            return (await here.leases.to_archive(0, node, [], 1, state)).grant.value

        async def hooks(node: str, state: HolderState = "") -> str:
            return (await here.leases.webhooks(0, node, [], 1, state)).grant.value

        for ask in (archive, hooks):
            assert await ask("a", "idle") == "granted"
            assert await ask("a", "idle") == "working"
            assert await ask("b", "idle") == "refused"

            async def grace(ask: Any = ask) -> bool:
                return bool(await ask("a") == "grace")

            await eventually(grace, 30)
            assert await ask("b", "idle") == "refused"
            assert await ask("a", "idle") == "granted"
            assert await ask("a", "leaving") == "refused"
            assert await ask("b") == "granted"
