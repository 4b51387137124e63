"""Makes text from users' code or from outside valid for storing and sending.

Python strings can hold lone surrogates: `os.listdir` makes them from file names that are not
UTF-8, and exception texts repeat those names. Such a string has no UTF-8 form, so neither Redis
nor JSON takes it. Everything that a person reads later (an error text, a note, a log field) goes
through `valid_text` at the place where it enters. A value that identifies something (an id, a
name, a header) must not be changed silently: it goes through `check_text`.

`count_of` writes a number of things for people.
"""

from __future__ import annotations

from angarium.runtime.errors import InputInvalid


def valid_text(text: str) -> str:
    r"""The same text, with each lone surrogate written as its escape (`caf\udce9`)."""
    # isascii reads a flag of the string, so ASCII text costs nothing.

    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()


def check_text(text: str, name: str) -> str:
    """The text itself, or InputInvalid: `name` says which input it was."""
    if not isinstance(text, str):
        raise InputInvalid(f"{name} must be text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputInvalid(f"{name} is not valid Unicode: {error.reason}") from error
    return text


def count_of(number: int, noun: str) -> str:
    """`1 reply`, `2,000 replies`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith(("ry", "ly")) else f"{noun}s"
    return f"{number:,} {plural}"
