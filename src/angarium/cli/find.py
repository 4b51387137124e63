"""`angarium find ID`: the current state and the history of any id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.output import Json, moment, print_json, print_line, run

if TYPE_CHECKING:
    from angarium.server.search import HistoryEvent, SearchAnswer


def find(
    id: Annotated[
        str,
        typer.Argument(
            help="Id of a message, transaction, conversation, reply or connection, or a key."
        ),
    ],
    as_json: Json = False,
) -> int:
    """Find an id in every module, in the journal and in the lake."""
    import msgspec

    answer = run(_find(id))
    if as_json:
        print_json(answer)
        return 0
    for found in answer.found:
        state = msgspec.json.encode(found.state).decode()
        print_line(f"{found.module}: {found.kind} {state[:300]}")
    if answer.trace_id is not None:
        print_line(f"trace: {answer.trace_id}")
    for related in answer.related:
        print_line(f"related: {related.kind} {related.id}")
    for event in answer.history:
        print_line(_line(event))
    if not answer.complete:
        print_line(f"older events are not in the journal; the lake: {answer.lake}")
    return 0


async def _find(id: str) -> SearchAnswer:
    from angarium.cli.runtime import open_runtime
    from angarium.server.search import Search, lake_of

    async with open_runtime() as runtime:
        search = Search(runtime, lake_of(runtime))
        try:
            return await search.search(id)
        finally:
            await search.close()


def _line(event: HistoryEvent) -> str:
    from angarium.dispatch.failures import LINE_END

    at = moment(event.at_ms)
    more = [
        f"{name}={str(value).partition(LINE_END)[0]}"  # without the traceback of a failure
        for name in ("key", "owner", "pipeline", "node", "attempt", "status", "detail")
        if (value := getattr(event, name)) is not None
    ]
    line = f"{at}  {event.module:<13} {event.event:<16} {event.subject}  {' '.join(more)}"
    return line.replace("\n", "\\n").rstrip()
