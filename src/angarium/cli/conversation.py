"""`angarium conversation`: a conversation's queue with reasons, and the senders of replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.output import Json, print_json, print_table, printable, run, seconds

if TYPE_CHECKING:
    from angarium.conversations.views import ConversationView, SendersView
    from angarium.conversations.wait_reasons import SenderWait


def conversation_commands() -> typer.Typer:
    commands = typer.Typer(
        help="Look at conversations.", no_args_is_help=True, rich_markup_mode=None
    )
    commands.command()(show)
    commands.command()(senders)
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
    print(_summary(found))
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
        print(f"sender {printable(name)} in {processes} {noun}")
    if not found.senders:
        print("no process sends replies")
    _print_needs(found.needs, found.now_ms)
    return 0


async def _look_at_senders() -> SendersView:
    from angarium.cli.runtime import open_runtime
    from angarium.conversations.queries import ConversationQueries
    from angarium.conversations.views import view_senders

    async with open_runtime() as runtime:
        return await view_senders(ConversationQueries(runtime))


def _print_needs(needs: Sequence[SenderWait], now_ms: int) -> None:
    from angarium.conversations.wait_reasons import process_with_sender

    for need in needs:
        many = "1 reply" if need.replies == 1 else f"{need.replies} replies"
        seconds = max(0, now_ms - need.since_ms) // 1000
        process = printable(process_with_sender(need.senders))
        print(f"{many} waiting for {process}, the first for {seconds} s")


async def _look(conversation_id: str) -> ConversationView:
    from angarium.cli.runtime import open_runtime
    from angarium.conversations.queries import ConversationQueries
    from angarium.conversations.views import view_conversation

    async with open_runtime() as runtime:
        return await view_conversation(ConversationQueries(runtime), conversation_id)


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
    return seconds(max(0, until_ms - now_ms))
