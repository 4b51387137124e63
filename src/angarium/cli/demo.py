"""`angarium demo`: run the demo in real processes and print its audit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from angarium.cli.output import print_error, print_json, print_line

if TYPE_CHECKING:
    from angarium.demo.run import DemoRun, Progress, Result

USERS_DEFAULT = 100
LINE_S = 2.0


def demo(
    users: Annotated[
        int, typer.Option("--users", min=2, max=20_000, help="Users, each with two questions.")
    ] = USERS_DEFAULT,
    kills: Annotated[
        bool, typer.Option("--kills/--no-kills", help="Kill a worker, a node, a gateway, a leader.")
    ] = True,
    lake: Annotated[
        bool,
        typer.Option("--lake/--no-lake", help="Audit in the lake, if it is installed."),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line at the end.")
    ] = False,
) -> int:
    """Run a support chat through every module, kill four processes, and audit the messages."""
    import uvloop

    result = uvloop.run(_demo(users, kills, lake, as_json))
    if as_json:
        print_json(result)
    else:
        _print_result(result)
    return 0 if result.audit.clean else 1


async def _demo(users: int, kills: bool, lake: bool, as_json: bool) -> Result:
    from angarium.demo.run import DemoRun, empty_home
    from angarium.settings import load

    home = empty_home(load().home / "demo")
    for_people = not as_json and sys.stdout.isatty()
    if for_people:
        from rich.live import Live

        with Live(refresh_per_second=4) as live:
            show = lambda found: live.update(_table(found))  # noqa: E731
            return await _run(DemoRun(users, home, kills=kills, lake=lake, show=show))
    return await _run(DemoRun(users, home, kills=kills, lake=lake, show=_Lines()))


async def _run(demo_run: DemoRun) -> Result:
    from angarium.runtime.errors import AngariumError

    try:
        async with demo_run:
            return await demo_run.run()
    except* AngariumError as errors:
        raise _first(errors) from None


def _first(error: BaseException) -> BaseException:
    """The errors of a group have the same cause; one is enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Lines:
    """Without a terminal, print the progress as lines on stderr."""

    def __init__(self) -> None:
        self._stage = ""
        self._at_s = 0.0

    def __call__(self, progress: Progress) -> None:
        import time

        now_s = time.monotonic()
        if progress.stage == self._stage and now_s - self._at_s < LINE_S:
            return
        self._stage, self._at_s = progress.stage, now_s
        done, kills = progress.journal_audit.removed, len(progress.kills)
        counts = f"{done} of {progress.wanted} replies picked up, {kills} processes killed"
        print_error(f"{progress.stage}: {counts}")


def _table(progress: Progress) -> Any:
    from rich.table import Table

    from angarium.demo.audit import event_counts

    title = f"Support chat: {progress.stage}"
    if progress.api_url:
        title += f"   {progress.api_url}/"
    table = Table(title=title, title_justify="left")
    table.add_column("event")
    table.add_column("count", justify="right")
    table.add_row("published on the channel", str(progress.published))
    for text, count in event_counts(progress.journal_audit.counts):
        table.add_row(text, str(count))
    for kill in progress.kills:
        table.add_row(f"[red]killed {kill.role}[/red] (pid {kill.pid})", f"at {kill.at_s:g} s")
    return table


def _print_result(result: Result) -> None:
    audit = result.audit
    print_line(f"{result.users} users, {result.messages} messages, {audit.replies} replies")
    print_line(f"{len(result.kills)} processes killed, {result.seconds:g} s")
    for name, found in audit.latency_ms.items():
        print_line(
            f"  {name:<8} p50 {found.p50:g} ms, p95 {found.p95:g} ms, p99 {found.p99:g} ms, "
            f"at most {found.max:g} ms from accepted to picked up"
        )
    balance = "accepted = delivered" if audit.accepted == audit.delivered else "NOT balanced"
    print_line(
        f"Audit: {balance}: {audit.accepted} accepted, {audit.delivered} delivered, "
        f"{audit.lost} lost, {audit.doubled} doubled, {audit.out_of_order} out of order"
    )
    print_line(f"Audited from {result.audited_by}")
    for example in audit.examples:
        print_line(f"  look at {example}")
    print_line(f"Data and logs: {result.home}")
    if audit.source == "lake":
        print_line(f"Report: {result.home}/report.html")
