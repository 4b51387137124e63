"""An application for tests with real nodes. Some steps log each execution, others misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

from angarium import Angarium
from angarium.transactions import Outcome, Step

app = Angarium()
_fd = -1
if path := os.environ.get("TRANSACTIONS_STEP_LOG"):
    _fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def log(step: Step, what: str) -> None:
    """One append per line, so that several nodes can write to one file."""
    if _fd >= 0:
        os.write(_fd, f"{what} {step.key}\n".encode())


@app.step("echo")
async def echo(step: Step) -> Outcome:
    return step.succeeded(step.data)


@app.step("logged")
async def logged(step: Step) -> Outcome:
    log(step, "began")
    pause_s = step.parameters.get("pause_s", 0)
    if pause_s:
        await asyncio.sleep(pause_s)
    log(step, "ended")
    return step.succeeded({"index": step.index})


@app.step("plain")
def plain(step: Step) -> Outcome:
    return step.succeeded({"thread": True})


@app.step("add")
async def add(step: Step) -> dict[str, int]:
    return {"sum": step.data["sum"] + step.parameters.get("n", 1)}


@app.step("double")
async def double(step: Step) -> Outcome:
    return step.succeeded({"value": step.data["value"] * 2})


@app.step("fail")
async def fail(step: Step) -> Outcome:
    return step.failed("no luck", {"why": "test"})


@app.step("abort")
async def abort(step: Step) -> Outcome:
    return step.aborted("not today")


@app.step("raise")
async def raising(step: Step) -> Outcome:
    raise RuntimeError("a step's own fault")


@app.step("nothing")
async def nothing(step: Step) -> None:
    return None


@app.step("strange")
async def strange(step: Step) -> Outcome:
    return step.succeeded({"object": object()})


@app.step("huge")
async def huge(step: Step) -> Outcome:
    return step.succeeded({"text": "x" * 2_000_000})


@app.step("for_ever")
async def for_ever(step: Step) -> Outcome:
    await asyncio.Event().wait()
    return step.succeeded()


@app.step("stubborn")
async def stubborn(step: Step) -> Outcome:
    """Ignores the first cancellation, but not the second one, so that the test can end."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()
    return step.succeeded()


@app.step("blocked")
def blocked(step: Step) -> Outcome:
    time.sleep(step.parameters["pause_s"])
    return step.succeeded()


@app.step("deaf")
async def deaf(step: Step) -> Outcome:
    """Catches its cancellation and returns success."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return step.succeeded({"late": True})


@app.step("plain_progress")
def plain_progress(step: Step) -> Outcome:
    step.report_progress({"percent": 50})
    return step.succeeded({"done": True})


@app.step("huge_progress")
async def huge_progress(step: Step) -> Outcome:
    await step.report_progress("x" * 2_000_000)
    return step.succeeded()


@app.step("wait_for_switch")
async def wait_for_switch(step: Step) -> Outcome:
    if "go" in step.switches:
        return step.succeeded({"go": step.switches["go"], "retry": step.retry})
    return step.retry_later(switch="go")


@app.step("sleep_once")
async def sleep_once(step: Step) -> Outcome:
    if step.retry:
        return step.succeeded({"retry": step.retry})
    return step.retry_later(seconds=step.parameters.get("seconds", 0.1))


@app.step("sleep_nonsense")
async def sleep_nonsense(step: Step) -> Outcome:
    return step.retry_later(seconds=float("nan"))


@app.step("progress")
async def progress(step: Step) -> Outcome:
    await step.report_progress({"percent": 50})
    if step.parameters.get("wait"):
        return step.retry_later(switch="go") if "go" not in step.switches else step.succeeded()
    return step.succeeded({"done": True})
