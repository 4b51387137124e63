"""`angarium top`: the dashboard's metrics in the terminal.

It reads Redis directly and needs no API process. On a terminal it stays and redraws. Into a pipe,
or with `--once`, it prints once, after the few seconds that a rate needs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from angarium.cli.output import duration, print_json, print_line, printable, run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from angarium.server.dashboard.overview import ModuleMetrics, Overview

# Roles report every 3 s; two reports make a rate.
BETWEEN_S = 3.2
INTERVAL_S_MIN = 0.2


def top(
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line for each sample, for programs.")
    ] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", min=INTERVAL_S_MIN, help="Seconds between two samples.")
    ] = 1.0,
) -> int:
    """Show waiting work, rates and notices of all modules."""
    stays = not once and (as_json or sys.stdout.isatty())
    try:
        run(_watch(as_json=as_json, interval_s=interval_s if stays else None))
    except BrokenPipeError:
        return 0  # the reader closed the pipe
    return 0


async def _watch(*, as_json: bool, interval_s: float | None) -> None:
    import asyncio

    from angarium.cli.runtime import open_runtime
    from angarium.server.dashboard.overview import OverviewSampler

    async with open_runtime() as runtime:
        sampler = OverviewSampler(runtime)
        if interval_s is None:
            await sampler.sample()
            await asyncio.sleep(BETWEEN_S)
            sample = await sampler.sample()
            print_json(sample) if as_json else _print_once(sample)
        elif as_json:
            while True:
                print_json(await sampler.sample())
                await asyncio.sleep(interval_s)
        else:
            await _stay(sampler, interval_s)


async def _stay(sampler: Any, interval_s: float) -> None:
    import asyncio

    from rich.live import Live
    from rich.text import Text

    from angarium.runtime.errors import OutcomeUnknown, RedisUnavailable

    with Live(Text("looking …"), screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(_screen(await sampler.sample()), refresh=True)
            except (RedisUnavailable, OutcomeUnknown) as error:
                # The next sample succeeds when Redis is back.
                live.update(Text(f"Redis is away: {error}", "red"), refresh=True)
            await asyncio.sleep(interval_s)


def _print_once(sample: Overview) -> None:
    """Plain lines in a pipe, a table for people."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(_screen(sample))
        return
    for module in sample.modules:
        rates = " ".join(
            f"{event}_per_s={sample.rates[f'{module.name}.{event}']:g}"
            for event, _ in _shown(module.name)
        )
        oldest = "" if module.oldest_ms is None else f" oldest_ms={module.oldest_ms}"
        print_line(
            f"{module.name} waiting={module.waiting}{oldest} processes={module.processes} {rates}"
        )
    print_line(f"journal events={sample.journal.events} entries={sample.journal.entries}")
    for notice in sample.notices:
        print_line(f"{notice.level} {notice.module}: {notice.text}; {notice.hint}")


def _screen(sample: Overview) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    title = Text.assemble(("Angarium ", "bold"), (sample.version, "dim"), "   ")
    title.append(f"{len(sample.processes)} roles, journal {sample.journal.events:,} events", "dim")
    for reader, behind_ms in sample.journal.behind_ms.items():
        title.append(f", {printable(reader)} {behind_ms / 1000:.1f} s behind", "dim")
    parts: list[RenderableType] = [title, Text(), _modules(sample), Text()]
    for notice in sample.notices:
        colour = "red" if notice.level == "trouble" else "yellow"
        text = printable(notice.text)
        parts.append(Text.assemble((f"{text}: ", colour), (notice.hint, "dim")))
    return Group(*parts, _processes(sample))


def _modules(sample: Overview) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("Module")
    for heading in ("Waiting", "Oldest", "Dead", "Processes"):
        table.add_column(heading, justify="right")
    table.add_column("Per second")
    for module in sample.modules:
        style = "" if module.processes else "dim"
        dead = Text(f"{module.dead:,}", "yellow" if module.dead else style)
        table.add_row(
            Text(module.name, f"bold {style}"), f"{module.waiting:,}", _age(module.oldest_ms), dead,
            str(module.processes), _rates(sample, module), style=style,
        )  # fmt: skip
    return table


def _rates(sample: Overview, module: ModuleMetrics) -> str:
    return "  ".join(
        f"{word} {sample.rates[f'{module.name}.{event}']:,.1f}"
        for event, word in _shown(module.name)
    )


def _shown(name: str) -> list[tuple[str, str]]:
    """Names and labels of the module's rates."""
    from angarium.modules import MODULES

    return [(rate.name, rate.label) for each in MODULES if each.name == name for rate in each.rates]


def _processes(sample: Overview) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("Role", "Host", "Process", "Last report"):
        table.add_column(heading, overflow="fold")
    for process in sample.processes:
        reported = f"{duration(sample.at_ms - process.at_ms)} ago"
        names = map(printable, (process.role, process.host, str(process.pid)))
        table.add_row(*map(Text, names), reported)
    return table


def _age(ms: int | None) -> str:
    return "" if ms is None else duration(ms)
