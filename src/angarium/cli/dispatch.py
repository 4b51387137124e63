"""`angarium dispatch …`: status and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import typer

from angarium.cli.dead_letters import DeadLetterCommands
from angarium.cli.output import Json, duration, print_json, print_line, print_table, run

if TYPE_CHECKING:
    from angarium.dispatch.dead_letters import DispatchDeadLetters
    from angarium.dispatch.service import DispatchService, QueueStatus
    from angarium.dispatch.store import PartitionStatus


def dispatch_commands() -> typer.Typer:
    commands = typer.Typer(help="Look at the dispatch module.", rich_markup_mode=None)
    commands.command()(status)
    commands.add_typer(DeadLetterCommands(_dead_letters).group(), name="dead")
    return commands


def status(as_json: Json = False) -> int:
    """Print the leader and the queues of each partition, and the workers."""
    return run(_status(as_json))


async def _status(as_json: bool) -> int:
    async with _service() as service:
        found = await service.status()
    if as_json:
        print_json(found)
        return 0
    print_table(
        ("partition", "leader", "term", "pending", "oldest", "inbox", "processed", "dead"),
        [_partition_row(each) for each in found.partitions],
    )
    print_line(f"consumers: {', '.join(found.consumers) or 'none registered'}")
    print_line(f"dispatchers: {', '.join(found.dispatchers) or 'none'}")
    if found.queues:
        print_table(
            ("queue", "waiting", "oldest", "workers"), [_queue_row(each) for each in found.queues]
        )
    return 0


def _queue_row(each: QueueStatus) -> tuple[str, ...]:
    oldest = duration(each.oldest_ms) if each.waiting else "-"
    return each.queue, str(each.waiting), oldest, str(each.workers or "none")


def _partition_row(each: PartitionStatus) -> tuple[str, ...]:
    oldest = duration(each.oldest_ms) if each.pending else "-"
    numbers = (each.inbox, each.processed, each.dead)
    return (
        str(each.partition), each.leader or "nobody", str(each.term), str(each.pending), oldest,
        *map(str, numbers),
    )  # fmt: skip


@asynccontextmanager
async def _service() -> AsyncIterator[DispatchService]:
    from angarium.cli.runtime import open_runtime
    from angarium.dispatch.service import DispatchService

    async with open_runtime() as runtime:
        yield DispatchService(runtime)


@asynccontextmanager
async def _dead_letters() -> AsyncIterator[DispatchDeadLetters]:
    async with _service() as service:
        yield service.dead_letters
