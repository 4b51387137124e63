"""`angarium find ID`: the current state and the history of any id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.output import Json, print_json, run

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
        print(f"{found.module}: {found.kind} {state[:300]}")
    if answer.trace_id is not None:
        print(f"trace: {answer.trace_id}")
    for related in answer.related:
        print(f"related: {related.kind} {related.id}")
    for event in answer.history:
        print(_line(event))
    if not answer.complete:
        print(f"older events are not in the journal; the lake: {answer.lake}")
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
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    more = [
        f"{name}={value}"
        for name in ("key", "owner", "pipeline", "node", "attempt", "status", "detail")
        if (value := getattr(event, name)) is not None
    ]
    return f"{at}  {event.module:<13} {event.event:<16} {event.subject}  {' '.join(more)}"
