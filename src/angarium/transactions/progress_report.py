"""Encodes a step's progress report as JSON. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from angarium.runtime.text import valid_text

_encode = msgspec.json.Encoder().encode


def encode_progress_report(report: Any) -> bytes:
    """Text that has no UTF-8 form is written with its escape: people read reports, so such text
    must not fail the step."""
    try:
        return _encode(report)
    except UnicodeEncodeError:
        return _encode(_escaped(msgspec.to_builtins(report)))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list | tuple) else value
