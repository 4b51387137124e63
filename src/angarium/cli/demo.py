"""`angarium demo`: the whole story with real processes, and the balance at its end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from angarium.demo.story import Progress, Result, Story

USERS_DEFAULT = 100
LINE_S = 2.0


def demo(
    users: Annotated[
        int, typer.Option("--users", min=2, max=20_000, help="People who ask two questions each.")
    ] = USERS_DEFAULT,
    kills: Annotated[
        bool, typer.Option("--kills/--no-kills", help="Kill a worker, a node, a gateway, a leader.")
    ] = True,
    lake: Annotated[
        bool,
        typer.Option("--lake/--no-lake", help="Let the lake draw up the balance, if there is one."),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line at the end, no pictures.")
    ] = False,
) -> int:
    """Play a support chat through every module, kill some of it, and draw up the balance."""
    import uvloop

    result = uvloop.run(_play(users, kills, lake, as_json))
    if as_json:
        import msgspec

        print(msgspec.json.encode(result).decode(), flush=True)
    else:
        _print_verdict(result)
    return 0 if result.audit.clean else 1


async def _play(users: int, kills: bool, lake: bool, as_json: bool) -> Result:
    from angarium.demo.story import Story, fresh_home
    from angarium.settings import load

    home = fresh_home(load().home / "demo")
    for_people = not as_json and sys.stdout.isatty()
    if for_people:
        from rich.live import Live

        with Live(refresh_per_second=4) as live:
            show = lambda found: live.update(_table(found))  # noqa: E731
            return await _run(Story(users, home, kills=kills, lake=lake, show=show))
    return await _run(Story(users, home, kills=kills, lake=lake, show=_Lines()))


async def _run(story: Story) -> Result:
    from angarium.runtime.errors import AngariumError

    try:
        async with story:
            return await story.play()
    except* AngariumError as errors:
        raise _first(errors) from None


def _first(error: BaseException) -> BaseException:
    """One of a group stands for all: they have the same cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Lines:
    """Progress for those who are no terminal: a line on stderr now and then."""

    def __init__(self) -> None:
        self._stage = ""
        self._at_s = 0.0

    def __call__(self, progress: Progress) -> None:
        import time

        now_s = time.monotonic()
        if progress.stage == self._stage and now_s - self._at_s < LINE_S:
            return
        self._stage, self._at_s = progress.stage, now_s
        done, kills = progress.ledger.removed, len(progress.kills)
        figures = f"{done} of {progress.wanted} replies picked up, {kills} processes killed"
        print(f"{progress.stage}: {figures}", file=sys.stderr, flush=True)


def _table(progress: Progress) -> Any:
    from rich.table import Table

    from angarium.demo.ledger import joints

    title = f"Support chat: {progress.stage}"
    if progress.api_url:
        title += f"   {progress.api_url}/"
    table = Table(title=title, title_justify="left")
    table.add_column("joint")
    table.add_column("passed", justify="right")
    table.add_row("published on the channel", str(progress.published))
    for text, count in joints(progress.ledger.counts):
        table.add_row(text, str(count))
    for kill in progress.kills:
        table.add_row(f"[red]killed {kill.role}[/red] (pid {kill.pid})", f"at {kill.at_s:g} s")
    return table


def _print_verdict(result: Result) -> None:
    audit = result.audit
    print(f"{result.users} users, {result.messages} messages, {audit.replies} replies")
    print(f"{len(result.kills)} processes killed, {result.seconds:g} s")
    for name, found in audit.latency_ms.items():
        print(
            f"  {name:<8} p50 {found.p50:g} ms, p95 {found.p95:g} ms, p99 {found.p99:g} ms, "
            f"at most {found.max:g} ms from accepted to picked up"
        )
    verdict = "accepted = delivered" if audit.accepted == audit.delivered else "NOT balanced"
    print(
        f"Audit: {verdict}: {audit.accepted} accepted, {audit.delivered} delivered, "
        f"{audit.lost} lost, {audit.doubled} doubled, {audit.out_of_order} out of order"
    )
    print(f"Drawn up by {result.audited_by}")
    for example in audit.examples:
        print(f"  look at {example}")
    print(f"Data and logs: {result.home}")
    if audit.source == "lake":
        print(f"Picture: {result.home}/report.html")
