"""`angarium MODULE dead list|show|retry|drop`: the same commands for every module."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from angarium.cli.output import (
    Json,
    moment,
    print_json,
    print_line,
    print_table,
    printable,
    run,
    warn,
)

if TYPE_CHECKING:
    from angarium.runtime.dead_letters import DeadLetter, DeadLetters

Opened = Callable[[], AbstractAsyncContextManager["DeadLetters[Any]"]]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids from the list.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Only those whose last reason contains this text.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=500, help="At most so many.")]
After = Annotated[
    str | None, typer.Option("--after", help="Continue after this cursor of an earlier list.")
]
# Contents and reasons are cut in lists.
SHOWN_CHARS_MAX = 60


class DeadLetterCommands:
    """`opened` connects and gives the dead letters."""

    def __init__(
        self, opened: Opened, about: str = "List, show, retry and drop dead letters."
    ) -> None:
        self._opened = opened
        self._about = about

    def group(self) -> typer.Typer:
        group = typer.Typer(help=self._about, no_args_is_help=True, rich_markup_mode=None)
        for command in (self.list, self.show, self.retry, self.drop):
            group.command()(command)
        return group

    def list(
        self,
        limit: Limit = 50,
        after: After = None,
        reason: Reason = "",
        as_json: Json = False,
    ) -> int:
        """List dead letters with their last reasons."""
        return run(self._list(limit, after, reason, as_json))

    def show(
        self,
        id: Annotated[str, typer.Argument(metavar="ID", help="From the list.")],
        as_json: Json = False,
    ) -> int:
        """Print one dead letter with its reasons and its content."""
        return run(self._show(id, as_json))

    def retry(
        self, ids: Ids = None, everything: All = False, reason: Reason = "", as_json: Json = False
    ) -> int:
        """Queue dead letters again, with all their tries."""

        async def all_of_them(letters: DeadLetters[Any]) -> Mapping[str, int]:
            return {"retried": 0, **await letters.retry_all(reason)}

        one: Any = lambda letters, id: letters.retry(id)  # noqa: E731
        return self._act(ids, everything or bool(reason), as_json, "retried", one, all_of_them)

    def drop(
        self, ids: Ids = None, everything: All = False, reason: Reason = "", as_json: Json = False
    ) -> int:
        """Remove dead letters for good."""

        async def all_of_them(letters: DeadLetters[Any]) -> Mapping[str, int]:
            return {"dropped": await letters.drop_all(reason)}

        one: Any = lambda letters, id: letters.drop(id)  # noqa: E731
        return self._act(ids, everything or bool(reason), as_json, "dropped", one, all_of_them)

    async def _list(self, limit: int, after: str | None, reason: str, as_json: bool) -> int:
        async with self._opened() as letters:
            page = await letters.page(limit, after, reason)
        if as_json:
            print_json(page)
            return 0
        columns = letters.columns
        print_table(
            ("id", "died", "tries", "last reason", *columns),
            [_row(each, columns) for each in page.letters],
        )
        if page.next is not None:
            warn(f"there are more; continue with --after {page.next}")
        return 0

    async def _show(self, id: str, as_json: bool) -> int:
        import msgspec

        async with self._opened() as letters:
            found = await letters.find(id)
        if as_json:
            print_json(found)
            return 0
        fields: dict[str, Any] = msgspec.to_builtins(found)
        fields["died"] = moment(fields.pop("at_ms"))
        reasons = fields.pop("reasons", None) or [fields["reason"]]
        del fields["reason"]
        own_lines = {name: fields.pop(name) for name in [*fields] if _is_long(fields[name])}
        shown = [pair for pair in fields.items() if pair[1] not in ("", None)]
        print_table((), [pair for pair in shown if pair[1] is not False])
        print_line("reasons:")
        for number, reason in enumerate(reasons, 1):
            print_line(f"{number:>4}  {reason}")
        for name, value in own_lines.items():
            print_line(f"{name}:")
            print_line(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        return 0

    def _act(
        self,
        ids: Sequence[str] | None,
        everything: bool,
        as_json: bool,
        done: str,
        one: Callable[[DeadLetters[Any], str], Awaitable[None]],
        all_of_them: Callable[[DeadLetters[Any]], Awaitable[Mapping[str, int]]],
    ) -> int:
        """Returns 0, or 1 with a line for each that failed."""
        from angarium.runtime.errors import InputInvalid

        if bool(ids) == everything:
            raise InputInvalid("name the dead letters by their ids, or by --all or --reason")

        async def act() -> int:
            async with self._opened() as letters:
                if everything:
                    return _print_counts(await all_of_them(letters), as_json)
                return await _one_by_one(letters, ids or (), done, one, as_json)

        return run(act())


async def _one_by_one(
    letters: DeadLetters[Any],
    ids: Sequence[str],
    done: str,
    one: Callable[[DeadLetters[Any], str], Awaitable[None]],
    as_json: bool,
) -> int:
    from angarium.runtime.errors import Conflict, NotFound

    outcomes: dict[str, str] = {}
    problems: list[str] = []
    for id in ids:
        try:
            await one(letters, id)
            outcomes[id] = done
        except (NotFound, Conflict) as error:
            outcomes[id] = error.code
            problems.append(str(error))
    if as_json:
        print_json({"letters": outcomes})
    else:
        for id, outcome in outcomes.items():
            print_line(f"{id} {outcome}")
    for problem in problems:
        warn(problem)
    return 1 if problems else 0


def _print_counts(counts: Mapping[str, int], as_json: bool) -> int:
    if as_json:
        print_json(counts)
    else:
        print_line(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0


def _row(letter: DeadLetter, columns: Sequence[str]) -> list[str]:
    cells = [_short(str(getattr(letter, name) or "")) for name in columns]
    return [letter.id, moment(letter.at_ms), str(letter.tries), _short(letter.reason), *cells]


def _short(text: str) -> str:
    line = printable(text)
    return line if len(line) <= SHOWN_CHARS_MAX else f"{line[: SHOWN_CHARS_MAX - 1]}…"


def _is_long(value: object) -> bool:
    """Contents and tracebacks have their own lines."""
    if isinstance(value, str):
        return "\n" in value or len(value) > SHOWN_CHARS_MAX
    return isinstance(value, list | dict)
