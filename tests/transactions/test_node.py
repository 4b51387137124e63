"""A node in this process: the outcomes of steps, and the states of their transactions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from angarium.runtime.runtime import Runtime
from angarium.transactions.settings import TransactionsSettings
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess
from tests.transactions.harness import Harness, harness, running_node


async def _run(here: Harness, steps: list[dict[str, Any]], data: Any = None, **more: Any) -> Any:
    await here.define("p", *steps, **more)
    return await here.ended(await here.start("p", data))


def _output(transaction: Any) -> Any:
    return msgspec.json.decode(transaction.output)


async def test_a_step_gets_the_output_of_the_step_before(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here, running_node(here.runtime):
        ended = await here.ended(await here.start("two", {"sum": 5}))
        assert ended.status == "success"
        assert _output(ended) == {"sum": 16}
        assert await here.event_names(ended.id) == ["started", "taken", "advanced", "completed"]


@pytest.mark.parametrize(
    ("step", "status", "note"),
    [
        ("fail", "failed", "no luck"),
        ("abort", "aborted", "not today"),
        ("raise", "internal-error", "RuntimeError: a step's own fault"),
        ("strange", "internal-error", "not JSON"),
        ("huge", "internal-error", "over 1048576"),
        ("sleep_nonsense", "internal-error", "sleep for nan"),
    ],
)
async def test_a_step_that_misbehaves_ends_its_transaction_but_not_the_node(
    redis_url: str, step: str, status: str, note: str
) -> None:
    async with harness(redis_url) as here, running_node(here.runtime) as node:
        ended = await _run(here, [{"type": step}, {"type": "echo"}])
        assert ended.status == status
        assert note in (ended.note or "")
        assert (await here.ended(await here.start())).status == "success"
        assert node.ready


async def test_a_failed_step_keeps_its_output(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        assert _output(await _run(here, [{"type": "fail"}])) == {"why": "test"}


async def test_a_plain_function_runs_in_a_thread(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        assert _output(await _run(here, [{"type": "plain"}])) == {"thread": True}


@pytest.mark.parametrize("step", ["for_ever", "stubborn", "blocked"])
async def test_a_step_that_does_not_return_times_out(redis_url: str, step: str) -> None:
    parameters = {"pause_s": 1.5}
    async with harness(redis_url) as here, running_node(here.runtime) as node:
        steps = [{"type": step, "timeout_ms": 50, "parameters": parameters}]
        ended = await _run(here, steps)
        assert ended.status == "timeout"
        assert "took longer than 50 ms" in (ended.note or "")
        assert (await here.ended(await here.start())).status == "success"
        assert node.ready


async def test_a_transaction_times_out_in_a_step_and_asleep(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        ended = await _run(here, [{"type": "for_ever"}], timeout_ms=200)
        assert ended.status == "timeout"
        await here.define("q", {"type": "wait_for_switch"}, timeout_ms=200)
        assert (await here.ended(await here.start("q"))).status == "timeout"
        assert [e.event for e in await here.events()].count("expired") == 2


async def test_a_sleeping_transaction_wakes_at_its_time_and_counts_retries(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as here, running_node(here.runtime):
        ended = await _run(here, [{"type": "sleep_once"}])
        assert _output(ended) == {"retry": 1}
        names = await here.event_names(ended.id)
        assert names == ["started", "taken", "slept", "woken", "taken", "completed"]


async def test_a_switch_wakes_a_sleeping_transaction_once(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here, running_node(here.runtime):
        await here.define("p", {"type": "wait_for_switch"})
        id = await here.start("p")
        await here.wait_for_status(id, "sleeping")
        assert await here.client.set_switch(id, "other", "1") == "set"
        assert await here.client.set_switch(id, "go", "now") == "woken"
        ended = await here.ended(id)
        assert _output(ended) == {"go": "now", "retry": 1}
        assert (await here.event_names(id)).count("woken") == 1


async def test_a_fan_out_waits_for_all_children(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here, running_node(here.runtime):
        await here.define("child", {"type": "double"})
        await here.define(
            "fan", {"pipeline": "child", "for_each": "items"}, {"type": "echo"},
            {"pipeline": "child", "for_each": "items"},
        )  # fmt: skip
        id = await here.start("fan", {"items": [{"value": n} for n in range(20)], "x": 1})
        ended = await here.ended(id)
        assert ended.status == "success", ended
        expected = {"items": [{"value": 4 * n} for n in range(20)], "x": 1}
        assert _output(ended) == expected
        events = await here.events()
        assert sum(each.event == "started" for each in events) == 41
        assert sum(each.event == "completed" for each in events) == 41
        assert (await here.event_names(id)).count("resumed") == 2


async def test_a_child_that_fails_fails_its_parent(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        await here.define("child", {"type": "fail"})
        ended = await _run(here, [{"pipeline": "child"}])
        assert ended.status == "failed"
        assert ended.note == "1 of 1 children did not succeed"
        assert _output(ended)[0]["status"] == "failed"


async def test_a_single_child_gives_its_output_and_no_items_need_no_child(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        await here.define("child", {"type": "double"})
        assert _output(await _run(here, [{"pipeline": "child"}], {"value": 4})) == {"value": 8}
        await here.define("none", {"pipeline": "child", "for_each": "items"})
        ended = await here.ended(await here.start("none", {"items": []}))
        assert ended.status == "success"
        bad = await here.ended(await here.start("none", {"items": 3}))
        assert bad.status == "internal-error"


async def test_children_run_on_the_node_group_of_their_pipeline(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.define("child", {"type": "double"}, node_group="other")
        await here.define("p", {"pipeline": "child"})
        id = await here.start("p", {"value": 1})
        async with running_node(here.runtime):
            await here.wait_for_status(id, "sleeping")
            assert (await here.state(f"{id}.0-1")).status == "queued"
        settings = here.runtime.settings
        other = settings.group(TransactionsSettings).model_copy(
            update={"node_groups": ("other", "default")}
        )
        changed = settings.model_copy(update={"transactions": other})
        async with Runtime.open(changed) as second, running_node(second):
            assert _output(await here.ended(id)) == {"value": 2}


async def test_old_transactions_finish_on_the_version_they_started_with(redis_url: str) -> None:
    async with harness(redis_url) as here:
        assert await here.define("p", {"type": "add"}) == 1
        old = await here.start("p", {"sum": 0})
        assert await here.define("p", {"type": "add", "parameters": {"n": 100}}) == 2
        new = await here.start("p", {"sum": 0})
        chosen = await here.start("p", {"sum": 0}, version=1)
        async with running_node(here.runtime):
            sums = [_output(await here.ended(id))["sum"] for id in (old, new, chosen)]
        assert sums == [1, 100, 1]


async def test_a_running_transaction_is_cancelled_in_its_step(any_redis_url: str) -> None:
    """One request is enough, even if the hint arrives before the node has taken the transaction."""
    settings = {"node_timeout_ms": 1_000}
    async with harness(any_redis_url, transactions=settings) as here, running_node(here.runtime):
        await here.define("p", {"type": "for_ever"})
        for _ in range(5):
            id = await here.start("p")
            await here.wait_for_status(id, "running")
            assert await here.client.cancel(id) == "cancelling"
            assert (await here.ended(id)).status == "cancelled"


async def test_a_node_that_stops_returns_its_transactions_to_the_front_of_the_queue(
    redis_url: str,
) -> None:
    settings = {"node_grace_ms": 50, "node_concurrency": 3}
    async with harness(redis_url, transactions=settings) as here:
        await here.define("p", {"type": "for_ever"})
        ids = [await here.start("p") for _ in range(5)]
        async with running_node(here.runtime):
            for id in ids[:3]:
                await here.wait_for_status(id, "running")
        assert {(await here.state(id)).status.value for id in ids} == {"queued"}
        assert (await here.queries.health_report(["default"], 1)).nodes == []
        taken = [each.id for each in await here.take()]
        assert set(taken[:3]) == set(ids[:3])
        assert taken[3:] == ids[3:]


async def test_a_progress_report_is_stored_and_published(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        ended = await _run(here, [{"type": "progress"}])
        assert msgspec.json.decode(ended.progress) == {"percent": 50}
        assert "progressed" in await here.event_names(ended.id)


async def test_the_step_key_is_the_same_when_a_step_runs_again(redis_url: str) -> None:
    from angarium import Angarium
    from angarium.transactions import Outcome, Step

    keys: list[str] = []
    app = Angarium()

    @app.step("keyed")
    async def keyed(step: Step) -> Outcome:
        keys.append(step.key)
        return step.succeeded() if step.retry else step.retry_later(seconds=0)

    async with harness(redis_url) as here, running_node(here.runtime, app):
        await here.define("p", {"type": "keyed"}, {"type": "keyed"})
        id = await here.start("p")
        await here.ended(id)
    assert keys == [f"{id}:0", f"{id}:0", f"{id}:1", f"{id}:1"]


async def test_a_plain_function_reports_progress_too(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        ended = await _run(here, [{"type": "plain_progress"}])
        assert (ended.status, msgspec.json.decode(ended.progress)) == ("success", {"percent": 50})


async def test_a_report_that_is_too_large_is_the_steps_error(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        ended = await _run(here, [{"type": "huge_progress"}])
        assert ended.status == "internal-error"
        assert "transaction_data_bytes_max" in (ended.note or "")


async def test_a_step_that_ignores_its_cancellation_times_out(redis_url: str) -> None:
    async with harness(redis_url) as here, running_node(here.runtime):
        ended = await _run(here, [{"type": "deaf", "timeout_ms": 50}, {"type": "echo"}])
        assert ended.status == "timeout"


async def test_threads_that_never_return_do_not_keep_others_waiting(redis_url: str) -> None:
    async with (
        harness(redis_url, transactions={"node_threads": 2}) as here,
        running_node(here.runtime),
    ):
        stuck = {"type": "blocked", "timeout_ms": 50, "parameters": {"pause_s": 5}}
        await here.define("stuck", stuck)
        for id in [await here.start("stuck") for _ in range(4)]:
            assert (await here.ended(id)).status == "timeout"
        assert (await _run(here, [{"type": "plain", "timeout_ms": 4_000}])).status == "success"


async def test_a_step_waits_for_a_thread_without_losing_its_time(redis_url: str) -> None:
    async with (
        harness(redis_url, transactions={"node_threads": 1}) as here,
        running_node(here.runtime),
    ):
        slow = {"type": "blocked", "timeout_ms": 2_000, "parameters": {"pause_s": 0.5}}
        await here.define("slow", slow)
        for id in [await here.start("slow") for _ in range(6)]:
            assert (await here.ended(id)).status == "success"


async def test_a_transaction_whose_end_redis_refuses_runs_again() -> None:
    """Redis answers, but refuses writes. The node drops the runs and continues."""
    with ServerProcess() as server:
        witness, settings = server.client(), {"node_timeout_ms": 1_000}
        async with (
            harness(server.url, transactions=settings) as here,
            running_node(here.runtime) as node,
        ):
            await here.define("p", {"type": "logged", "parameters": {"pause_s": 0.5}})
            ids = [await here.start("p") for _ in range(3)]
            for id in ids:
                await here.wait_for_status(id, "running")
            witness.config_set("min-replicas-to-write", 1)
            await eventually(lambda: node.running_count == 0, 30)
            witness.config_set("min-replicas-to-write", 0)
            for id in ids:
                ended = await here.ended(id)
                assert (ended.status, ended.run) == ("success", 2)
            assert node.ready
