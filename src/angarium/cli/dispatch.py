"""`angarium dispatch …`: status and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.output import Json, print_json, print_table, run, seconds, warn

if TYPE_CHECKING:
    from angarium.dispatch.dead_letters import DispatchDeadLetters
    from angarium.dispatch.store import DispatchDeadLetter, DispatchStore, PartitionStatus

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of the messages.")]
# Payloads and reasons are cut in lists.
SHOWN_CHARS_MAX = 60


def dispatch_commands() -> typer.Typer:
    commands = typer.Typer(help="Look at the dispatch module.", rich_markup_mode=None)
    commands.command()(status)
    dead = typer.Typer(
        help="Dead letters: messages that failed all their deliveries.", rich_markup_mode=None
    )
    dead.command("list")(list_dead)
    dead.command("retry")(retry)
    dead.command("drop")(drop)
    commands.add_typer(dead, name="dead")
    return commands


def status(as_json: Json = False) -> int:
    """Print the leader and the queues of each partition, and the workers."""
    return run(_status(as_json))


async def _status(as_json: bool) -> int:
    async with _store() as store:
        partitions = [await store.status(number) for number in range(store.partitions)]
        consumers, dispatchers = await store.consumers(), await store.dispatchers()
    if as_json:
        print_json({"partitions": partitions, "consumers": consumers, "dispatchers": dispatchers})
        return 0
    print_table(
        ("partition", "leader", "term", "pending", "oldest", "inbox", "processed", "dead"),
        [_partition_row(each) for each in partitions],
    )
    print(f"consumers: {', '.join(consumers) or 'none registered'}")
    print(f"dispatchers: {', '.join(dispatchers) or 'none'}")
    return 0


def _partition_row(each: PartitionStatus) -> tuple[str, ...]:
    oldest = seconds(each.oldest_ms) if each.pending else "-"
    numbers = (each.inbox, each.processed, each.dead)
    return (
        str(each.partition), each.leader or "nobody", str(each.term), str(each.pending), oldest,
        *map(str, numbers),
    )  # fmt: skip


def list_dead(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", help="Continue after this cursor of an earlier list.")
    ] = None,
    as_json: Json = False,
) -> int:
    """List dead letters with their reasons, oldest first."""
    return run(_list_dead(limit, after, as_json))


async def _list_dead(limit: int, after: str | None, as_json: bool) -> int:
    from angarium.dispatch.dead_letters import DispatchDeadLetters, dead_letter_view, page_cursor

    letters: list[DispatchDeadLetter] = []
    cursor = None
    async with _store() as store:
        async for letter in DispatchDeadLetters(store).walk(after):
            if len(letters) == limit:
                cursor = page_cursor(letters[-1])
                break
            letters.append(letter)
    if as_json:
        print_json({"letters": [dead_letter_view(each) for each in letters], "next": cursor})
        return 0
    print_table(
        ("message", "died", "deliveries", "last reason", "payload"),
        [_letter_row(each) for each in letters],
    )
    if cursor is not None:
        warn(f"there are more; continue with --after {cursor}")
    return 0


def retry(
    ids: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    as_json: Json = False,
) -> int:
    """Make dead messages pending again, with all their deliveries."""

    async def one(letters: DispatchDeadLetters, message_id: str) -> str:
        await letters.retry(message_id)
        return "retried"

    async def all_of_them(letters: DispatchDeadLetters) -> dict[str, int]:
        return {"retried": 0, **await letters.retry_all()}

    return _act(ids, everything, as_json, one, all_of_them)


def drop(
    ids: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    as_json: Json = False,
) -> int:
    """Remove dead messages permanently."""

    async def one(letters: DispatchDeadLetters, message_id: str) -> str:
        await letters.drop(message_id)
        return "discarded"

    async def all_of_them(letters: DispatchDeadLetters) -> dict[str, int]:
        return {"discarded": 0, **await letters.drop_all()}

    return _act(ids, everything, as_json, one, all_of_them)


def _act(
    ids: Sequence[str] | None,
    everything: bool,
    as_json: bool,
    one: Callable[[DispatchDeadLetters, str], Awaitable[str]],
    all_of_them: Callable[[DispatchDeadLetters], Awaitable[dict[str, int]]],
) -> int:
    """Returns 0, or 1 with a line for each message that failed."""
    from angarium.runtime.errors import InputInvalid

    if bool(ids) == everything:
        raise InputInvalid("name the messages by their ids, or all of them by --all")

    async def act() -> int:
        from angarium.dispatch.dead_letters import DispatchDeadLetters

        async with _store() as store:
            letters = DispatchDeadLetters(store)
            if everything:
                return _print_counts(await all_of_them(letters), as_json)
            return await _one_by_one(letters, ids or (), one, as_json)

    return run(act())


async def _one_by_one(
    letters: DispatchDeadLetters,
    ids: Sequence[str],
    one: Callable[[DispatchDeadLetters, str], Awaitable[str]],
    as_json: bool,
) -> int:
    from angarium.runtime.errors import Conflict, NotFound

    outcomes: dict[str, str] = {}
    problems: list[str] = []
    for message_id in ids:
        try:
            outcomes[message_id] = await one(letters, message_id)
        except (NotFound, Conflict) as error:
            outcomes[message_id] = error.code
            problems.append(str(error))
    if as_json:
        print_json({"messages": outcomes})
    else:
        for message_id, outcome in outcomes.items():
            print(f"{message_id} {outcome}")
    for problem in problems:
        warn(problem)
    return 1 if problems else 0


def _print_counts(counts: dict[str, int], as_json: bool) -> int:
    if as_json:
        print_json(counts)
    else:
        print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0


@asynccontextmanager
async def _store() -> AsyncIterator[DispatchStore]:
    from angarium.cli.runtime import open_runtime
    from angarium.dispatch.store import DispatchStore

    async with open_runtime() as runtime:
        yield runtime.store(DispatchStore)


def _letter_row(letter: DispatchDeadLetter) -> tuple[str, ...]:
    from datetime import datetime

    died = datetime.fromtimestamp(letter.at_ms / 1000).isoformat(" ", "seconds")
    reason = letter.reasons[-1] if letter.reasons else ""
    payload = "(gone)" if letter.payload is None else letter.payload.decode(errors="replace")
    return letter.message_id, died, str(letter.deliveries), _short(reason), _short(payload)


def _short(text: str) -> str:
    # Published text may contain control characters of the terminal.
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if len(line) <= SHOWN_CHARS_MAX else f"{line[: SHOWN_CHARS_MAX - 1]}…"
