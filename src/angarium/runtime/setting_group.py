"""What the groups of settings share, and the groups of the runtime: HTTP, Redis, the journal.

A parser converts a user's text into the value; a check refuses invalid values. Their errors say
what is wrong and what to do, in words that fit after the setting's name. Only `read_consumers`
reads files, because that setting may name one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

from angarium.runtime import urls
from angarium.runtime.limits import MIB
from angarium.runtime.urls import host_port_problem, redacted

# Names are sent with every command; this is longer than any name that a person chooses.
NAME_BYTES_MAX = 256
CONSUMERS_FIX = "use host:port, a list of them, or a file with one on each line"
INBOUND_FIX = 'use a list such as [["http","127.0.0.1","8071"],["ws","127.0.0.1","8081"]]'


def refusal(problem: str, fix: str, at: tuple[str, ...] = ()) -> PydanticCustomError:
    """An error for validators to raise; `at` names another setting than the one validated."""
    return PydanticCustomError(
        "refused", "{problem}; {fix}", {"problem": problem, "fix": fix, "at": at}
    )


def check(problem_of: Callable[[str], str | None], fix: str) -> Callable[[str], str]:
    """A validator from a function that finds the problem."""

    def validate(value: str) -> str:
        problem = problem_of(value)
        if problem is not None:
            raise refusal(problem, fix)
        return value

    return validate


def key_name(value: str) -> str:
    if not value:
        raise refusal("it is empty", "give it a name or leave it out")
    return key_text(value, NAME_BYTES_MAX)


def key_text(value: str, bytes_max: int) -> str:
    """Text that may become part of a key's name."""
    for letter in value:
        if letter in "{}":
            # A brace would move the key to the slot of another hash tag.
            raise refusal(f"'{letter}' is not allowed in it", "leave out the braces")
        if letter.isspace() or not letter.isprintable():
            raise refusal(f"{letter!r} is not allowed in it", "leave out spaces and line ends")
    size = len(value.encode())
    if size > bytes_max:
        raise refusal(f"its {size} bytes are more than {bytes_max}", "choose a shorter one")
    return value


def read_home(value: Any) -> Any:
    """An absolute path: the embedded server and other processes may run in another folder."""
    if not isinstance(value, str | Path):
        return value
    if not str(value) or "\0" in str(value):
        raise refusal("it is not the name of a folder", "leave it out to use ./.angarium")
    try:
        return Path(value).expanduser().absolute()
    except (RuntimeError, OSError):
        raise refusal(f"the folder of '{value}' is not known", "write the whole path") from None


def read_list(value: Any, fix: str = "use a list with commas") -> Any:
    """A list as JSON or with commas. A value that is not text is returned unchanged."""

    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise refusal(f"it is not JSON: {error}", fix) from None
    return [item.strip() for item in value.split(",") if item.strip()]


def read_consumers(value: Any) -> tuple[str, ...]:
    items = read_list(value, CONSUMERS_FIX)
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise refusal("it is not a list of host:port", CONSUMERS_FIX)
    if len(items) == 1 and host_port_problem(items[0]) and _is_file(items[0]):
        items = _lines_of(Path(items[0]))
    for item in items:
        problem = host_port_problem(item)
        if problem is not None:
            missing = " and not a file" if len(items) == 1 else ""
            raise refusal(f"'{item}' {problem}{missing}", CONSUMERS_FIX)
    return tuple(items)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _lines_of(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise refusal(f"the file {path} can't be read", "make it readable text") from None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def read_inbound(value: Any) -> tuple[tuple[str, str, int], ...]:
    """Transport, host and port of each listener; ports are often written as text."""
    items = read_list(value, INBOUND_FIX)
    if not isinstance(items, list | tuple):
        raise refusal("it is not a list of listeners", INBOUND_FIX)
    return tuple(_listener(item) for item in items)


def _listener(item: Any) -> tuple[str, str, int]:
    if not isinstance(item, list | tuple) or len(item) != 3:
        raise refusal(f"{item!r} is not a transport, a host and a port", INBOUND_FIX)
    transport, host, port = item
    if transport not in ("http", "ws"):
        raise refusal(f"the transport {transport!r} is neither http nor ws", INBOUND_FIX)
    if not isinstance(host, str) or not host:
        raise refusal(f"{host!r} is not a host", INBOUND_FIX)
    if not str(port).isdecimal() or int(port) > 65535:
        raise refusal(f"{port!r} is not a port between 0 and 65535", INBOUND_FIX)
    return transport, host, int(port)


Port = Annotated[int, Field(ge=0, le=65535)]
# Scripts use doubles, which are exact up to this number.

Positive = Annotated[int, Field(ge=1, le=2**53)]
Factor = Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False)]
Name = Annotated[str, AfterValidator(key_name)]
HttpUrl = Annotated[
    str, AfterValidator(check(urls.http_url_problem, "use a URL such as https://host/path"))
]


class Redacting(BaseModel):
    """Shows URLs without their passwords wherever it is printed."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if isinstance(value, str) and "url" in str(name):
                value = redacted(value)
            elif isinstance(value, tuple):
                value = tuple(redacted(v) if isinstance(v, str) else v for v in value)
            yield name, value


class Group(Redacting):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class AccessMode(StrEnum):
    AUTO = "auto"  # open on loopback until the first token exists; closed from then on
    OPEN = "open"  # open on loopback, also if tokens exist
    TOKENS = "tokens"  # every request needs a token, also before the first one exists


class HttpSettings(Group):
    host: str = Field("127.0.0.1", description="Address the API and the dashboard listen on.")
    port: Port = Field(8400, description="Port of the API and the dashboard; 0 takes a free one.")
    tokens: Annotated[tuple[SecretStr, ...], BeforeValidator(read_list)] = Field(
        (),
        description="Bearer tokens of the API as `scope:token` or `scope@tenant:token`; the token "
        "is plain text or `sha256=` and its hash. `angarium token create` adds more.",
    )


class RedisSettings(Group):
    call_timeout_ms: Positive = Field(
        5_000, description="Milliseconds a call may take before its connection is closed."
    )
    unavailable_timeout_ms: Positive = Field(
        10_000, description="Milliseconds a call waits for an unreachable Redis before it fails."
    )
    connections_max: Positive = Field(
        8, description="Connections to each Redis server for calls that need their own connection."
    )


class JournalSettings(Group):
    enabled: bool = Field(True, description="Whether transitions are written to the journal.")
    bytes_max: Positive = Field(
        256 * MIB,
        description="Bytes of the journal of a partition. Beyond this size the oldest entries are "
        "dropped and counted, even if a reader has not read them.",
    )
    full: Literal["drop", "refuse"] = Field(
        "drop",
        description="What happens when readers leave less than an eighth of `bytes_max` free: "
        "`drop` accepts new work until entries are dropped, `refuse` refuses new work with the "
        "code `journal_full` until they have caught up. Accepted work goes on in both cases.",
    )
