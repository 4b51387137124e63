"""Failed tries and dead letters, with a real node: what a user's step may do to its transaction."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest

from angarium import Angarium
from angarium.runtime.retry_policy import DoNotRetry
from angarium.transactions import Outcome, Step
from angarium.transactions import keys as transactions_keys
from angarium.transactions.errors import NotDead, PipelineUnknown, TransactionUnknown
from angarium.transactions.node_work import NodeWork
from tests.kit.clock import FakeClock
from tests.transactions.harness import FAR_MS, Harness, harness, running_node


class Service:
    """What a step calls: it fails as often as it is told to."""

    def __init__(self, failures: int, error: type[BaseException] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"call {self.calls} failed")


def application(service: Service, **policy: Any) -> Angarium:
    app = Angarium()

    @app.step("first")
    async def first(step: Step) -> Outcome:
        return step.succeeded({"sum": 1})

    @app.step("call", backoff="fixed", **policy)
    async def call(step: Step) -> dict[str, Any]:
        service.call()
        return {"sum": step.data["sum"] + 1}

    @app.step("plain_call", backoff="fixed", **policy)
    def plain_call(step: Step) -> dict[str, Any]:
        service.call()
        return {"sum": step.data["sum"] + 1}

    return app


async def _run(here: Harness, *step_types: str) -> str:
    await here.define("p", *({"type": each} for each in step_types))
    return await here.start("p", {"sum": 0})


@pytest.mark.parametrize("step", ["call", "plain_call"])
@pytest.mark.parametrize("error", [ConnectionError, SystemExit, KeyboardInterrupt])
async def test_a_step_that_fails_is_tried_again_and_its_transaction_succeeds(
    redis_url: str, step: str, error: type[BaseException]
) -> None:
    service = Service(2, error)
    async with (
        harness(redis_url) as here,
        running_node(here.runtime, application(service, retries=3)) as node,
    ):
        ended = await here.ended(await _run(here, "first", step))
        assert (ended.status, service.calls) == ("success", 3)
        assert msgspec.json.decode(ended.output) == {"sum": 2}
        events = await here.event_names(ended.id)
        assert events.count("step_failed") == 2
        assert events[-1] == "completed"
        assert node.ready


async def test_the_last_try_makes_a_dead_letter_that_keeps_the_reason(redis_url: str) -> None:
    service = Service(100)
    async with (
        harness(redis_url) as here,
        running_node(here.runtime, application(service, retries=2)),
    ):
        ended = await here.ended(await _run(here, "first", "call"))
        assert (ended.status, ended.reason, service.calls) == ("failed", "ConnectionError", 3)
        assert ended.note is not None
        assert "step 2 (call) failed 3 times" in ended.note
        assert "ConnectionError: call 3 failed" in ended.note
        assert (await here.event_names(ended.id))[-1] == "dead"
        (dead,) = (await here.client.dead_letters().page(10)).letters
        assert (dead.id, dead.step, dead.reason) == (ended.id, 2, "ConnectionError")
        assert (dead.tries, dead.crashes, dead.note) == (3, 0, ended.note)
        assert (await here.client.health_report(1)).dead_letters == 1


async def test_without_retries_the_setting_decides(redis_url: str) -> None:
    service = Service(100)
    async with (
        harness(redis_url, transactions={"max_runs": 2}) as here,
        running_node(here.runtime, application(service)),
    ):
        ended = await here.ended(await _run(here, "first", "call"))
        assert (ended.status, service.calls) == ("failed", 2)


@pytest.mark.parametrize(
    ("error", "policy"),
    [(DoNotRetry, {"retries": 5}), (ValueError, {"retries": 5, "retry_on": ConnectionError})],
)
async def test_an_error_that_must_not_be_retried_ends_at_once(
    redis_url: str, error: type[BaseException], policy: dict[str, Any]
) -> None:
    service = Service(100, error)
    async with (
        harness(redis_url) as here,
        running_node(here.runtime, application(service, **policy)),
    ):
        ended = await here.ended(await _run(here, "first", "call"))
        assert (ended.status, ended.reason, service.calls) == ("failed", error.__name__, 1)


async def test_a_coroutine_that_takes_too_long_is_tried_again(redis_url: str) -> None:
    app, calls = Angarium(), []

    @app.step("slow", retries=1, backoff="fixed", timeout_s=0.05)
    async def slow(step: Step) -> Outcome:
        calls.append(step.key)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return step.succeeded()

    async with harness(redis_url) as here, running_node(here.runtime, app):
        ended = await here.ended(await _run(here, "slow"))
        assert (ended.status, len(calls)) == ("success", 2)
        calls[:] = []
        service_calls = await here.start("p", {"sum": 0})
        assert (await here.ended(service_calls)).status == "success"


async def test_the_last_try_that_takes_too_long_ends_as_timeout(redis_url: str) -> None:
    app = Angarium()

    @app.step("slow", retries=0, timeout_s=0.05)
    async def slow(step: Step) -> Outcome:
        await asyncio.Event().wait()
        return step.succeeded()

    async with harness(redis_url) as here, running_node(here.runtime, app):
        ended = await here.ended(await _run(here, "slow"))
        assert (ended.status, ended.reason) == ("timeout", "TimeoutError")


async def test_sys_exit_ends_neither_the_node_nor_its_other_transactions(redis_url: str) -> None:
    app = Angarium()

    @app.step("exit", retries=0)
    async def leave(step: Step) -> Outcome:
        sys.exit(0)

    @app.step("fine")
    async def fine(step: Step) -> Outcome:
        await asyncio.sleep(0.05)
        return step.succeeded()

    async with harness(redis_url) as here, running_node(here.runtime, app) as node:
        await here.define("fine", {"type": "fine"})
        others = [await here.start("fine") for _ in range(20)]
        ended = await here.ended(await _run(here, "exit"))
        assert (ended.status, ended.reason) == ("failed", "HandlerExit")
        assert "SystemExit(0)" in (ended.note or "")
        assert {(await here.ended(each)).status.value for each in others} == {"success"}
        assert node.ready


# Dead letters


async def test_a_dead_letter_is_rerun_from_the_step_that_failed(redis_url: str) -> None:
    service = Service(2)
    async with (
        harness(redis_url) as here,
        running_node(here.runtime, application(service, retries=1)),
    ):
        id = await _run(here, "first", "call")
        assert (await here.ended(id)).status == "failed"
        assert await here.client.rerun(id) == "queued"
        ended = await here.ended(id)
        assert (ended.status, ended.reason, ended.note) == ("success", None, None)
        assert msgspec.json.decode(ended.output) == {"sum": 2}, "the first step did not run again"
        assert (await here.client.dead_letters().page(10)).letters == []
        events = await here.event_names(id)
        assert events.count("taken") == 3
        assert [each for each in events if each in ("dead", "rerun", "completed")] == [
            "dead", "rerun", "completed",
        ]  # fmt: skip


async def test_a_rerun_may_have_new_data(redis_url: str) -> None:
    service = Service(1)
    async with (
        harness(redis_url) as here,
        running_node(here.runtime, application(service, retries=0)),
    ):
        id = await _run(here, "call")
        assert (await here.ended(id)).status == "failed"
        await here.client.rerun(id, b'{"sum":40}')
        assert msgspec.json.decode((await here.ended(id)).output) == {"sum": 41}


async def test_a_dropped_dead_letter_is_archived_and_not_rerun(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        taken = await here.taken()
        await here.store.complete(taken, "failed", b"", "no", "ValueError")
        kept_ms = 1_209_600 * 1_000
        score = await here.score(transactions_keys.TO_ARCHIVE, taken.id)
        assert score == clock.now_ms() + kept_ms
        assert await here.client.drop(taken.id) == "dropped"
        score = await here.score(transactions_keys.TO_ARCHIVE, taken.id)
        assert score == clock.now_ms() + 1_200_000
        assert await here.score(transactions_keys.DEAD_LETTERS, taken.id) is None
        for change in (here.client.drop, here.client.rerun):
            with pytest.raises(NotDead):
                await change(taken.id)
        assert (await here.event_names(taken.id))[-1] == "discarded"


async def test_only_dead_letters_are_rerun_and_dropped(redis_url: str) -> None:
    async with harness(redis_url) as here:
        queued = await here.start()
        (ended,) = await here.completed()
        for change in (here.store.drop, here.store.rerun):
            for id in (queued, ended):
                with pytest.raises(NotDead):
                    await change(id)
            with pytest.raises(TransactionUnknown):
                await change("ghost")


async def test_a_rerun_needs_its_version_of_the_pipeline(redis_url: str) -> None:
    async with harness(redis_url) as here:
        taken = await here.taken()
        await here.store.complete(taken, "failed", b"", "no", "ValueError")
        name = here.runtime.keyspace.name(transactions_keys.PIPELINE, 0, "one")
        await here.runtime.redis.call("DEL", name, key=name)
        with pytest.raises(PipelineUnknown):
            await here.client.rerun(taken.id)
        assert await here.score(transactions_keys.DEAD_LETTERS, taken.id) is not None


# Crashes of nodes


async def test_a_transaction_whose_nodes_crash_too_often_is_a_dead_letter(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        id = await here.start()
        for number in range(1, 6):
            (taken,) = await here.take(node=f"n{number}")
            assert (taken.id, taken.crashes) == (id, number - 1)
            await clock.advance(8.1)
            recovered = await here.store.recover(0, "other", NodeWork((), FAR_MS))
            assert recovered.count == 1
            assert bool(recovered.dead) == (number == 5)
        ((dead_id, reason),) = recovered.dead
        found = await here.state(id)
        assert (dead_id, reason) == (id, found.note)
        assert (found.status, found.reason, found.crashes) == ("failed", "crashed", 5)
        assert "5 times" in (found.note or "")
        (dead,) = (await here.client.dead_letters().page()).letters
        assert (dead.reason, dead.tries, dead.crashes) == ("crashed", 5, 5)
        assert await here.take() == []
        assert (await here.event_names(id))[-1] == "dead"
        assert await here.client.rerun(id) == "queued"
        (taken,) = await here.take()
        assert taken.crashes == 0


async def test_a_finished_step_forgets_the_crashes_before_it(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        await here.start("two")
        await here.take(node="n1")
        await clock.advance(8.1)
        await here.recover("other")
        (taken,) = await here.take(node="n2")
        assert taken.crashes == 1
        await here.store.checkpoint(taken.id, taken.run, 1, b'1 0 {"sum":1}')
        assert (await here.state(taken.id)).crashes == 0


async def test_transactions_whose_nodes_crashed_run_one_at_a_time_on_a_node(redis_url: str) -> None:
    """One of them crashes nodes, and the others only ran beside it."""
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        ids = {await here.start() for _ in range(4)}
        for node in ("n1", "n2"):
            assert len(await here.take(node=node)) == 4
            await clock.advance(8.1)
            await here.recover("other")
        fresh = await here.start()
        taken = await here.take(node="n3")
        assert fresh in {each.id for each in taken}
        suspects = [each for each in taken if each.crashes]
        assert len(suspects) == 1
        seen = {suspects[0].id}
        while len(seen) < 4:
            for each in await here.take(node="n3"):
                seen.add(each.id)
                await here.store.complete(each, "success")
        assert seen == ids
