"""Applications with different steps, for nodes that run side by side."""

from __future__ import annotations

import asyncio
import os

from angarium import Angarium
from angarium.transactions import Outcome, Step


async def done(step: Step) -> Outcome:
    """The output lists which node did which step."""
    so_far = step.data.get("done", []) if isinstance(step.data, dict) else []
    return step.succeeded({"done": [*so_far, [step.type, os.getpid()]]})


async def ask_later(step: Step) -> Outcome:
    return step.succeeded({"retry": step.retry}) if step.switches else step.retry_later(switch="go")


def application(*step_types: str) -> Angarium:
    app = Angarium()
    for name in step_types:
        app.step(name)(ask_later if name == "wait_for_bank" else done)
    return app


# One deployment after the other: `charge` is the same, `notify` became `announce`.
old = application("charge", "notify", "wait_for_bank")
new = application("charge", "announce")
# Two teams on one Redis, both in the node group `default`.
shop = application("reserve", "pack")
bank = application("debit", "credit")
without_steps = Angarium()
reporting = Angarium()


@reporting.step("report_and_wait")
async def report_and_wait(step: Step) -> Outcome:
    await step.report_progress({"percent": 50})
    await asyncio.Event().wait()
    return step.succeeded()
