"""`angarium conversation`: a conversation's queue with reasons, senders, and dead replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.dead_letters import DeadLetterCommands
from angarium.cli.output import Json, duration, print_json, print_line, print_table, printable, run

if TYPE_CHECKING:
    from angarium.conversations.dead_replies import DeadReplies
    from angarium.conversations.views import ConversationView, SendersView
    from angarium.conversations.wait_reasons import SenderWait


def conversation_commands() -> typer.Typer:
    commands = typer.Typer(
        help="Look at conversations.", no_args_is_help=True, rich_markup_mode=None
    )
    commands.command()(show)
    commands.command()(senders)
    about = "List, show, retry and drop replies that were cancelled after a failure."
    commands.add_typer(DeadLetterCommands(_dead_replies, about).group(), name="dead")
    return commands


def show(
    conversation_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the conversation.")],
    as_json: Json = False,
) -> int:
    """Print a conversation's queue in order, and the reason each reply waits."""
    found = run(_look(conversation_id))
    if as_json:
        print_json(found)
        return 0
    print_line(_summary(found))
    _print_requests(found)
    _print_replies(found)
    _print_needs(found.needs, found.now_ms)
    return 0


def senders(
    as_json: Json = False,
) -> int:
    """Print the senders of the running processes, and the replies that wait for another one."""
    found = run(_look_at_senders())
    if as_json:
        print_json(found)
        return 0
    for name, processes in found.senders.items():
        noun = "process" if processes == 1 else "processes"
        print_line(f"sender {printable(name)} in {processes} {noun}")
    if not found.senders:
        print_line("no process sends replies")
    _print_needs(found.needs, found.now_ms)
    return 0


@asynccontextmanager
async def _dead_replies() -> AsyncIterator[DeadReplies]:
    from angarium.cli.runtime import open_runtime
    from angarium.conversations.service import ConversationService

    async with open_runtime() as runtime:
        yield ConversationService(runtime).dead


async def _look_at_senders() -> SendersView:
    from angarium.cli.runtime import open_runtime
    from angarium.conversations.service import ConversationService

    async with open_runtime() as runtime:
        return await ConversationService(runtime).senders()


def _print_needs(needs: Sequence[SenderWait], now_ms: int) -> None:
    from angarium.conversations.wait_reasons import process_with_sender

    for need in needs:
        many = "1 reply" if need.replies == 1 else f"{need.replies} replies"
        waited = duration(now_ms - need.since_ms)
        process = printable(process_with_sender(need.senders))
        print_line(f"{many} waiting for {process}, the first for {waited}")


async def _look(conversation_id: str) -> ConversationView:
    from angarium.cli.runtime import open_runtime
    from angarium.conversations.service import ConversationService

    async with open_runtime() as runtime:
        return await ConversationService(runtime).show(conversation_id)


def _print_requests(found: ConversationView) -> None:
    rows = [
        (
            each.position,
            each.request_id,
            "answered" if each.answered else "no reply yet",
            _left(each.until_ms, found.now_ms),
        )
        for each in found.requests
    ]
    print_table(("position", "request", "state", "time left"), rows)


def _print_replies(found: ConversationView) -> None:
    rows = [
        (
            f"{each.reply.position}.{each.reply.number}",
            each.reply.response_id,
            each.reply.status,
            each.reason.text,
            _left(each.reply.until_ms, found.now_ms),
        )
        for each in found.replies
    ]
    print_table(("place", "reply", "status", "reason", "time left"), rows)


def _summary(found: ConversationView) -> str:
    return (
        f"conversation {printable(found.conversation_id)}: "
        f"{found.replies_total} replies in flight, {found.requests_total} requests"
    )


def _left(until_ms: int, now_ms: int) -> str:
    return duration(max(0, until_ms - now_ms))
