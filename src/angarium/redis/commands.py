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
TEXT_KINDS = frozenset(TEXTS)
# The packer takes any buffer as well, and of one with gaps it sends the wrong bytes.
SENDABLE = (str, bytes, float)


def pack_commands(commands: Sequence[Command]) -> bytes:
    """All of them as bytes, or CommandInvalid."""
    try:
        if len(commands) == 1:
            packed = _pack(commands[0])
        else:
            packed = b"".join([_pack(command) for command in commands])
    except (TypeError, ValueError):  # UnicodeEncodeError is a ValueError
        # Not chained: the error carries the argument.
        raise CommandInvalid(_problem(commands)) from None
    if len(packed) > COMMAND_BYTES_MAX:
        _check_sizes(commands)
    elif not packed:
        raise CommandInvalid("no command was given")
    return packed


def _check_sizes(commands: Sequence[Command]) -> None:
    for command in commands:
        size_bytes = len(_pack(command))
        if size_bytes > COMMAND_BYTES_MAX:
            size = f"{size_bytes} bytes, and Redis takes at most {COMMAND_BYTES_MAX}"
            raise CommandInvalid(f"{_name(command, 1)} is too large: {size}")


def _pack(command: Command) -> bytes:
    if type(command) is not tuple:
        command = _as_tuple(command)
    if not command:
        # Redis answers nothing to an empty command, and the replies would no longer match.
        raise TypeError
    # Most commands are text alone, and this looks at them faster than the loop does.
    if not TEXT_KINDS.issuperset(map(type, command)):
        argument: Any
        for argument in command:
            kind = type(argument)
            if kind is str or kind is bytes:
                continue
            # As `_sendable`, without a call for each number.
            if not (INTEGER_MIN < argument < INTEGER_MAX if kind is int else _sendable(argument)):
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
