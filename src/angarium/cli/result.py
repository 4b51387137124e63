"""`angarium result ID`: what became of a message, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.output import (
    Json,
    moment,
    print_json,
    print_line,
    print_table,
    run,
    warn,
)

if TYPE_CHECKING:
    from angarium.dispatch.message_state import MessageState
    from angarium.dispatch.service import DispatchService

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the messages.")]
# Each message that is awaited asks Redis some times a second.
WAITING_MAX = 50


def result(
    ids: Ids,
    wait_s: Annotated[float, typer.Option("--wait-s", min=0, help="Seconds to wait for it.")] = 0,
    as_json: Json = False,
) -> int:
    """Print what became of messages: their results, or why there is none.

    The exit code is 1 if one of them has no result.
    """
    return run(_result(ids, wait_s, as_json))


async def _result(ids: Sequence[str], wait_s: float, as_json: bool) -> int:
    from angarium.cli.runtime import open_runtime
    from angarium.dispatch.service import DispatchService

    async with open_runtime() as runtime:
        return await print_results(DispatchService(runtime), ids, wait_s, as_json)


async def print_results(
    service: DispatchService, ids: Sequence[str], wait_s: float, as_json: bool
) -> int:
    import asyncio

    places = asyncio.Semaphore(WAITING_MAX)

    async def look(message_id: str) -> MessageState:
        async with places:
            return await service.messages.wait(message_id, wait_s)

    states = await asyncio.gather(*map(look, ids))
    for state in states:
        if as_json:
            print_json(state)
        else:
            _print_state(state)
    return 0 if all(each.state == "completed" for each in states) else 1


def _print_state(state: MessageState) -> None:
    by = f" by {state.consumer}" if state.consumer else ""
    print_line(f"{state.message_id}  {state.state}{by}, {moment(state.at_ms)}")
    if state.result:
        print_table((), [("", name, text) for name, text in state.result.items()])
    for number, reason in enumerate(state.reasons, 1):
        print_line(f"{number:>4}  {reason}")
    for line in state.traceback.splitlines():
        print_line(f"      {line}")
    if not state.final:
        warn(f"there is no result yet: angarium result {state.message_id} --wait-s 60")
    elif state.state == "dead":
        warn(f"it failed for good; to try again: angarium dispatch dead retry {state.message_id}")
