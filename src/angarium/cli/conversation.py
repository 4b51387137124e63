"""`angarium conversation`: who waits for whom in a conversation and why, and who sends replies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

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
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> int:
    """Print a conversation's queue in order, and the reason each reply waits."""
    import msgspec
    import uvloop

    found = uvloop.run(_look(conversation_id))
    if as_json:
        print(msgspec.json.encode(found).decode())
    elif sys.stdout.isatty():
        _print_table(found)
    else:
        _print_lines(found)
    if not as_json:
        _print_needs(found.needs, found.now_ms)
    return 0


def senders(
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> int:
    """Print the senders of the running processes, and the replies that wait for another one."""
    import msgspec
    import uvloop

    found = uvloop.run(_look_at_senders())
    if as_json:
        print(msgspec.json.encode(found).decode())
        return 0
    for name, processes in found.senders.items():
        print(
            f"sender {_plain(name)} in {processes} {'process' if processes == 1 else 'processes'}"
        )
    if not found.senders:
        print("no process sends replies")
    _print_needs(found.needs, found.now_ms)
    return 0


async def _look_at_senders() -> SendersView:
    from angarium.cli.runtime import opened
    from angarium.conversations.queries import ConversationQueries
    from angarium.conversations.views import view_senders

    async with opened() as runtime:
        return await view_senders(ConversationQueries(runtime))


def _print_needs(needs: Sequence[SenderWait], now_ms: int) -> None:
    from angarium.conversations.wait_reasons import process_with_sender

    for need in needs:
        many = "1 reply" if need.replies == 1 else f"{need.replies} replies"
        seconds = max(0, now_ms - need.since_ms) // 1000
        process = _plain(process_with_sender(need.senders))
        print(f"{many} waiting for {process}, the first for {seconds} s")


async def _look(conversation_id: str) -> ConversationView:
    from angarium.cli.runtime import opened
    from angarium.conversations.queries import ConversationQueries
    from angarium.conversations.views import view_conversation

    async with opened() as runtime:
        return await view_conversation(ConversationQueries(runtime), conversation_id)


def _print_lines(found: ConversationView) -> None:
    print(_summary(found))
    for request in found.requests:
        state = "answered" if request.answered else "no reply yet"
        print(f"request {_plain(request.request_id)} position {request.position} {state}")
    for each in found.replies:
        reply = each.reply
        place = f"{reply.position}.{reply.number}"
        text = f"{_plain(reply.response_id)} {reply.status} {_plain(each.reason.text)}"
        print(f"reply {place} {text}")


def _print_table(found: ConversationView) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(_summary(found), "bold"))
    requests = Table(title="Requests", box=None, pad_edge=False, title_justify="left")
    for heading in ("Position", "Request", "State", "Time left"):
        requests.add_column(heading, overflow="fold")
    for request in found.requests:
        state = Text("answered", "green") if request.answered else Text("no reply yet", "yellow")
        left = _left(request.until_ms, found.now_ms)
        requests.add_row(str(request.position), Text(_plain(request.request_id)), state, left)
    replies = Table(title="Replies", box=None, pad_edge=False, title_justify="left")
    for heading in ("Place", "Reply", "Status", "Why", "Time left"):
        replies.add_column(heading, overflow="fold")
    for each in found.replies:
        reply = each.reply
        colour = "green" if each.reason.why in ("send", "sent") else "yellow"
        replies.add_row(
            f"{reply.position}.{reply.number}",
            Text(_plain(reply.response_id)),
            Text(reply.status, colour),
            Text(_plain(each.reason.text)),
            _left(reply.until_ms, found.now_ms),
        )
    console.print(requests)
    console.print(replies)


def _summary(found: ConversationView) -> str:
    return (
        f"conversation {_plain(found.conversation_id)}: {found.replies_total} replies in flight, "
        f"{found.requests_total} requests"
    )


def _left(until_ms: int, now_ms: int) -> str:
    return f"{max(0, until_ms - now_ms) / 1000:.1f} s"


def _plain(text: str) -> str:
    """Ids are strangers' text: what would steer a terminal or begin a line is spelled out."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
