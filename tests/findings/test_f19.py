"""Twelve successful children of 100 KB each: their parent succeeds."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from angarium import Angarium
from angarium.transactions import Step
from tests.transactions.harness import harness, running_node


async def test_f19_large_outputs_of_children_reach_the_next_step_by_reference(
    redis_url: str,
) -> None:
    app = Angarium()

    @app.step("child")
    async def child(step: Step) -> dict[str, Any]:
        return {"text": "x" * 100_000, "number": step.data}

    @app.step("sum")
    async def total(step: Step) -> dict[str, Any]:
        outputs = [await step.output_of(each) for each in step.data["items"]]
        return {
            "numbers": sorted(each["number"] for each in outputs),
            "references": sum("output_of" in each for each in step.data["items"]),
        }

    @app.step("plain_sum")
    def plain_sum(step: Step) -> dict[str, Any]:
        async def read() -> list[Any]:
            return [await step.output_of(each) for each in step.data["items"]]

        return {"numbers": sorted(each["number"] for each in asyncio.run(read()))}

    async with harness(redis_url) as here, running_node(here.runtime, app):
        await here.define("child", {"type": "child"})
        for last in ("sum", "plain_sum"):
            steps = [{"pipeline": "child", "for_each": "items"}, {"type": last}]
            await here.define(f"parent-{last}", *steps)
            ended = await here.ended(await here.start(f"parent-{last}", {"items": [*range(12)]}))
            output = msgspec.json.decode(ended.output)
            assert (ended.status, output["numbers"]) == ("success", [*range(12)])
            assert output.get("references", 7) == 7, "five of 100 KB fit in half of 1 MiB"
