"""F53 for steps: returning nothing is a result; texts that have no UTF-8 form reach the reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from angarium.transactions.model import Transaction
from tests.findings.transactions_deployment import DEADLINE_S, Deployment, deployment
from tests.kit.eventually import eventually

APP = "tests.findings.odd_steps:app"


@asynccontextmanager
async def running(redis_url: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployment(redis_url, tmp_path) as here, here.role("node", "--app", APP):
        yield here


async def _run(here: Deployment, *step_types: str) -> Transaction:
    name = "-".join(step_types)
    await here.define(name, *step_types)
    (found,) = await here.ended(await here.start(name))
    # Whatever a step said, the node goes on.
    await here.define("fine", "fine")
    assert [each.status for each in await here.ended(await here.start("fine"))] == ["success"]
    return found


def _output(found: Transaction) -> Any:
    return msgspec.json.decode(found.output)


@pytest.mark.parametrize("step", ["nothing", "plain_nothing"])
async def test_a_step_that_returns_nothing_succeeds_with_null(
    redis_url: str, tmp_path: Path, step: str
) -> None:
    async with running(redis_url, tmp_path) as here:
        found = await _run(here, step)
        assert (found.status, _output(found), found.note) == ("success", None, None)
        found = await _run(here, step, "say_data")
        assert (found.status, _output(found)) == ("success", {"data": None})


async def test_a_step_that_returns_another_type_ends_as_internal_error(
    redis_url: str, tmp_path: Path
) -> None:
    async with running(redis_url, tmp_path) as here:
        found = await _run(here, "number")
        assert found.status == "internal-error"
        assert found.note == "step 1: it returned int, not an outcome, a dict or None"


@pytest.mark.parametrize(
    ("step", "status", "note"),
    [
        ("raise_odd", "internal-error", "step 1: ValueError: caf\\udce9"),
        ("fail_odd", "failed", "caf\\udce9"),
        ("abort_odd", "aborted", "caf\\udce9"),
        ("succeed_odd", "success", "caf\\udce9"),
        ("switch_odd", "internal-error", "switch"),
        ("output_odd", "internal-error", "its output is not JSON"),
        ("dict_odd", "internal-error", "its output is not JSON"),
    ],
)
async def test_text_without_a_utf8_form_is_written_with_its_escape(
    redis_url: str, tmp_path: Path, step: str, status: str, note: str
) -> None:
    async with running(redis_url, tmp_path) as here:
        found = await _run(here, step)
        assert found.status == status
        assert note in (found.note or "")


async def test_a_progress_report_with_such_text_is_kept(redis_url: str, tmp_path: Path) -> None:
    async with running(redis_url, tmp_path) as here:
        for step in ("report_odd", "plain_report_odd"):
            found = await _run(here, step)
            assert found.status == "success", found.note
            assert msgspec.json.decode(found.progress) == {"caf\\udce9": ["caf\\udce9", 1, None]}


async def test_a_switch_with_such_a_value_is_refused(redis_url: str, tmp_path: Path) -> None:
    from angarium.runtime.errors import InputInvalid

    async with running(redis_url, tmp_path) as here:
        await here.define("p", "wait")
        (id,) = await here.start("p")
        await here.wait_for_status(id, "sleeping")
        with pytest.raises(InputInvalid):
            await here.client.set_switch(id, "go", "caf\udce9")
        await here.client.set_switch(id, "go", "café")
        await eventually(lambda: here.ended([id]), DEADLINE_S)
