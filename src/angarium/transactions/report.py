"""A progress report of a step as JSON. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from angarium.runtime.text import valid_text

_encode = msgspec.json.Encoder().encode


def encode_report(report: Any) -> bytes:
    """A report is for people to read: text in it that has no UTF-8 form is no reason to fail."""
    try:
        return _encode(report)
    except UnicodeEncodeError:
        return _encode(_valid(msgspec.to_builtins(report)))


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {_valid(key): _valid(each) for key, each in value.items()}
    return [_valid(each) for each in value] if isinstance(value, list | tuple) else value
