"""Steps that return nothing, and steps that say what has no UTF-8 form."""

from __future__ import annotations

import os
from typing import Any

from angarium import Angarium
from angarium.transactions import Outcome, Step

app = Angarium()
# As `os.listdir` gives a file name that is not UTF-8.
ODD = os.fsdecode(b"caf\xe9")


@app.step("fine")
async def fine(step: Step) -> Outcome:
    return step.succeeded()


@app.step("nothing")
async def nothing(step: Step) -> None:
    return


@app.step("plain_nothing")
def plain_nothing(step: Step) -> None:
    return


@app.step("say_data")
async def say_data(step: Step) -> dict[str, Any]:
    return {"data": step.data}


@app.step("number")
async def number(step: Step) -> int:
    return 7


@app.step("raise_odd", retries=0)
async def raise_odd(step: Step) -> Outcome:
    raise ValueError(ODD)


@app.step("fail_odd")
async def fail_odd(step: Step) -> Outcome:
    return step.failed(ODD)


@app.step("abort_odd")
async def abort_odd(step: Step) -> Outcome:
    return step.aborted(ODD)


@app.step("succeed_odd")
async def succeed_odd(step: Step) -> Outcome:
    return step.succeeded({"a": 1}, ODD)


@app.step("switch_odd")
async def switch_odd(step: Step) -> Outcome:
    return step.retry_later(switch=ODD)


@app.step("output_odd")
async def output_odd(step: Step) -> Outcome:
    return step.succeeded({"name": ODD})


@app.step("dict_odd")
async def dict_odd(step: Step) -> dict[str, Any]:
    return {ODD: 1}


@app.step("report_odd")
async def report_odd(step: Step) -> Outcome:
    await step.report_progress({ODD: [ODD, 1, None]})
    return step.succeeded()


@app.step("plain_report_odd")
def plain_report_odd(step: Step) -> Outcome:
    step.report_progress({ODD: [ODD, 1, None]})
    return step.succeeded()


@app.step("wait")
async def wait(step: Step) -> Outcome:
    return step.succeeded() if step.switches else step.retry_later(switch="go")
