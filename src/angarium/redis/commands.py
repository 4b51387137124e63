"""Commands as bytes. What can't be sent is refused here, before anything knows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from angarium.redis.errors import CommandInvalid

Argument = str | bytes | int | float
Command = Sequence[Argument]
# The stub of hiredis knows only one-word commands.
pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)

# The server closes the connection, and so fails every other caller, when one argument is larger
# than proto-max-bulk-len or a command larger than client-query-buffer-limit; this is the smaller
# of the two defaults.
COMMAND_BYTES_MAX = 512 * 1024 * 1024
# Python prints no integer of more digits than its int_max_str_digits, which is never below 640,
# and the C code that packs one it could not print ends the process.
INTEGER_MAX = 1 << 2_048
INTEGER_MIN = -INTEGER_MAX
NAME_LENGTH_MAX = 32
TEXTS = (str, bytes)
# The packer takes any buffer as well, and of one with gaps it sends the wrong bytes.
SENDABLE = (str, bytes, float)
PLAIN = {str, bytes, float, int}


def pack_commands(commands: Sequence[Command]) -> list[bytes]:
    """All of them as bytes, or CommandInvalid."""
    if not commands:
        raise CommandInvalid("no command was given")
    try:
        packed = [_pack(command) for command in commands]
    except (TypeError, ValueError):  # UnicodeEncodeError is a ValueError
        # Not chained: the error carries the argument.
        raise CommandInvalid(_problem(commands)) from None
    if sum(map(len, packed)) > COMMAND_BYTES_MAX:
        _check_sizes(commands, packed)
    return packed


def _check_sizes(commands: Sequence[Command], packed: list[bytes]) -> None:
    for command, data in zip(commands, packed, strict=True):
        if len(data) > COMMAND_BYTES_MAX:
            size = f"{len(data)} bytes, and Redis takes at most {COMMAND_BYTES_MAX}"
            raise CommandInvalid(f"{_name(command, 1)} is too large: {size}")


def _pack(command: Command) -> bytes:
    if type(command) is not tuple:
        command = _as_tuple(command)
    if not command:
        # Redis answers nothing to an empty command, and the replies would no longer match.
        raise TypeError
    # In this form the check of a batch costs a third of a loop over its arguments.
    kinds = set(map(type, command))
    if not kinds <= PLAIN and not all(map(_sendable, command)):
        raise TypeError
    if int in kinds:
        numbers = [each for each in command if type(each) is int]
        if min(numbers) <= INTEGER_MIN or max(numbers) >= INTEGER_MAX:
            raise TypeError
    return pack(command)


def _as_tuple(command: Command) -> tuple[Argument, ...]:
    if isinstance(command, TEXTS):
        raise TypeError  # a sequence, too, but of letters
    return tuple(command)


def _sendable(argument: Any) -> bool:
    kind = type(argument)
    if kind is int:
        return bool(INTEGER_MIN < argument < INTEGER_MAX)
    return isinstance(argument, SENDABLE)


def _problem(commands: Sequence[Command]) -> str:
    """Names the argument; its value is not shown, for it may be anybody's data."""
    for command in commands:
        if isinstance(command, TEXTS):
            return "a command is a sequence of arguments, and this one is a text"
        if not command:
            return "an empty command can't be sent to Redis"
        for place, argument in enumerate(command):
            why = _refused(argument)
            if why:
                kind = type(argument).__name__
                return f"argument {place} of {_name(command, place)} ({kind}) {why}"
    return "a command can't be sent to Redis"


def _refused(argument: Any) -> str | None:
    if not _sendable(argument):
        if type(argument) is int:
            return "has too many digits"
        return "can't be sent to Redis: only text, bytes and numbers can"
    try:
        pack((argument,))
    except (TypeError, ValueError):
        return "can't be sent to Redis: it is no valid Unicode"
    return None


def _name(command: Command, place: int) -> str:
    """The command's name, unless it is itself what is wrong."""
    name = command[0]
    if place == 0 or not isinstance(name, str) or not name.isascii():
        return "a command"
    return name[:NAME_LENGTH_MAX]
