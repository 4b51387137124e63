"""`angarium publish`: send messages to workers, from arguments, files or stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from angarium.cli.output import Json, print_json, print_line, run, warn
from angarium.cli.result import print_results

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from angarium.dispatch.service import DispatchService
    from angarium.dispatch.store import Enqueued
    from angarium.runtime.runtime import Runtime

# Messages and bytes per call to Redis: enough to amortise the round trip.
CHUNK_MESSAGES = 500
CHUNK_BYTES = 1024 * 1024
# Ids that are printed for people; --json prints all of them.
SHOWN_MAX = 100


def publish(
    messages: Annotated[
        list[str],
        typer.Argument(
            metavar="JSON|-|@FILE...",
            help="A message; - for one on each line of stdin; @FILE for one in a file.",
        ),
    ],
    channel: Annotated[
        bool,
        typer.Option(
            "--channel", help="Publish on the channel; without a dispatcher the message is lost."
        ),
    ] = False,
    # The default since 0.2; scripts of 0.1 name it.
    durable: Annotated[bool, typer.Option("--durable", hidden=True)] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Idempotency key: a second message with it is not added."),
    ] = None,
    queue: Annotated[
        str, typer.Option("--queue", help="Named queue whose workers get the message.")
    ] = "",
    count: Annotated[
        int, typer.Option("--count", min=1, help="Publish each message this many times.")
    ] = 1,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the results and print them.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", min=0, help="With --wait: seconds to wait.")
    ] = 30.0,
    as_json: Json = False,
) -> int:
    """Send messages to workers and print their ids.

    A message is put into the durable intake, where it waits for a dispatcher. The exit code is 1
    if a message was lost, or, with --wait, if one of them has no result.
    """
    from angarium.runtime.errors import InputInvalid

    if channel and (durable or wait or key is not None):
        raise InputInvalid("a message on the channel has no key and no id to wait for")
    if key is not None and (not key or len(messages) > 1 or count > 1 or messages == ["-"]):
        raise InputInvalid("--key is for one message, given as an argument or @FILE")
    if wait and "-" in messages:
        raise InputInvalid("--wait is for messages that are given as arguments or @FILE")
    if channel:
        return run(_publish(messages, count, queue, as_json))
    return run(_enqueue(messages, count, key, queue, wait_s if wait else None, as_json))


async def _publish(arguments: Sequence[str], count: int, queue: str, as_json: bool) -> int:
    from angarium.dispatch.service import DispatchService

    sent, unheard, listeners = 0, 0, 0
    async with _runtime(arguments) as runtime:
        service = DispatchService(runtime)
        for chunk in _chunks(arguments, count, service):
            heard_by = await service.publish(chunk, queue)
            listeners = heard_by[-1]
            unheard += heard_by.count(0)
            sent += len(chunk)
        channel = service.channel_of(queue)
    if as_json:
        print_json({"messages": sent, "listeners": listeners, "unheard": unheard})
    else:
        print_line(f"{_count(sent, 'message')} on {channel}, heard by {listeners}")
    if unheard:
        hint = "start a dispatcher, or publish without --channel"
        if queue:
            hint = f"set ANGARIUM_DISPATCH__QUEUES={queue} for a dispatcher, or omit --channel"
        warn(f"nobody listened to {_count(unheard, 'message')}: lost; {hint}")
    return 1 if unheard else 0


async def _enqueue(
    arguments: Sequence[str],
    count: int,
    key: str | None,
    queue: str,
    wait_s: float | None,
    as_json: bool,
) -> int:
    from angarium.dispatch.service import DispatchService

    sent = 0
    shown: list[Enqueued] = []
    async with _runtime(arguments) as runtime:
        service = DispatchService(runtime)
        for chunk in _chunks(arguments, count, service):
            given = [(payload, key) for payload in chunk]
            enqueued = await service.enqueue(given, [queue] * len(chunk))
            sent += len(chunk)
            if as_json or "-" not in arguments:
                shown += enqueued
        dispatchers = len(await service.dispatchers())
        if not as_json:
            _print_enqueued(sent, shown)
        if not dispatchers:
            warn("no dispatcher runs; the messages wait until one does")
        if wait_s is not None:
            ids = list(dict.fromkeys(each.message_id for each in shown))
            return await print_results(service, ids, wait_s, as_json)
    if as_json:
        messages = [each._asdict() for each in shown]
        print_json({"messages": messages, "dispatchers": dispatchers})
    return 0


def _print_enqueued(sent: int, shown: Sequence[Enqueued]) -> None:
    if sent == 1 and shown:
        again = ", sent before" if shown[0].duplicate else ""
        print_line(f"1 message in the durable intake: {shown[0].message_id}{again}")
        return
    if len(shown) <= SHOWN_MAX:
        for each in shown:
            print_line(each.message_id)
    print_line(f"{_count(sent, 'message')} in the durable intake")


def _runtime(arguments: Sequence[str]) -> AbstractAsyncContextManager[Runtime]:
    """Reading stdin may take long, so a failover of Redis is waited for."""
    from angarium.cli.installation import load_installation
    from angarium.cli.runtime import open_runtime
    from angarium.runtime.runtime import Runtime

    return Runtime.open(load_installation()) if "-" in arguments else open_runtime()


def _chunks(
    arguments: Sequence[str], count: int, service: DispatchService
) -> Iterator[list[bytes]]:
    """Checked payloads in order. All arguments are checked before the first message is sent; lines
    of stdin are sent as they arrive."""
    messages_max = min(CHUNK_MESSAGES, service.messages_max)
    for payloads in _runs(arguments, service):
        chunk: list[bytes] = []
        size = 0
        for payload in payloads:
            for _ in range(count):
                chunk.append(payload)
                size += len(payload)
                if len(chunk) >= messages_max or size >= CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
        if chunk:
            yield chunk


def _runs(arguments: Sequence[str], service: DispatchService) -> Iterator[list[bytes]]:
    given = {each: _read(each, service) for each in arguments if each != "-"}
    for argument in arguments:
        if argument != "-":
            yield [given[argument]]
            continue
        number = 0
        for lines in _lines():
            numbered = enumerate(lines, number + 1)
            yield [_checked(line, f"line {i}", service) for i, line in numbered if line.strip()]
            number += len(lines)


def _lines() -> Iterator[list[bytes]]:
    """Lines of stdin as they arrive, grouped by read."""
    import os

    rest: list[bytes] = []
    while data := os.read(sys.stdin.fileno(), CHUNK_BYTES):
        *whole, last = data.split(b"\n")
        if whole:
            whole[0] = b"".join((*rest, whole[0]))
            rest = []
            yield whole
        rest.append(last)
    if any(rest):
        yield [b"".join(rest)]


def _read(argument: str, service: DispatchService) -> bytes:
    from pathlib import Path

    from angarium.runtime.errors import InputInvalid

    if not argument.startswith("@"):
        return _checked(argument.encode(errors="surrogateescape"), repr(argument[:60]), service)
    path = Path(argument[1:])
    try:
        return _checked(path.read_bytes(), str(path), service)
    except OSError as error:
        raise InputInvalid(f"{path} can't be read: {error.strerror}") from None


def _checked(payload: bytes, what: str, service: DispatchService) -> bytes:
    """Refuse invalid JSON before it becomes a dead letter."""
    import msgspec

    from angarium.runtime.errors import InputInvalid

    payload = payload.strip()
    try:
        msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid(f"{what} is no JSON: {error}") from None
    service.check_payload(payload)
    return payload


def _count(number: int, noun: str) -> str:
    """Without separators, unlike `count_of`: scripts read this line."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
