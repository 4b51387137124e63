"""JSON-RPC 2.0: parses frames into calls and refusals, and encodes answers. Pure.

A frame holds one call or a batch. An id is returned as the same bytes, so every legal id survives:
strings, fractions, null. A call without an id is a notification and is never answered, not even
with an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from angarium.pickup.errors import (
    CODES,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)
from angarium.pickup.payload import DETAIL_CHARS_MAX
from angarium.runtime.errors import AngariumError, InputInvalid

# The specification's text of each code.
MEANINGS = {
    PARSE_ERROR: "Parse error",
    INVALID_REQUEST: "Invalid Request",
    METHOD_NOT_FOUND: "Method not found",
    INVALID_PARAMS: "Invalid params",
    INTERNAL_ERROR: "Internal error",
}
NULL = b"null"


class _RpcEnvelope(msgspec.Struct):
    method: str
    jsonrpc: str
    params: msgspec.Raw = msgspec.Raw()
    id: msgspec.Raw = msgspec.Raw()


class Call(msgspec.Struct, gc=False):
    """`id` is None for a notification; `params` are raw JSON, empty when there were none."""

    method: str
    params: bytes
    id: bytes | None


class Refusal(msgspec.Struct, frozen=True):
    """The answer to an entry that is not a valid call."""

    answer: bytes


class RpcFrame(msgspec.Struct, frozen=True):
    """A batch is answered by one list, in any order."""

    entries: Sequence[Call | Refusal]
    batch: bool


_decode_envelope = msgspec.json.Decoder(_RpcEnvelope).decode
_decode_batch = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_any = msgspec.json.Decoder().decode


def parse(data: bytes, batch_max: int) -> RpcFrame:
    """Never raises: invalid input becomes a refusal."""
    if data[:1] == b"{":
        call = _fast_call(data)
        if call is not None:
            return RpcFrame((call,), False)
    try:
        if data.lstrip()[:1] == b"[":
            items = _decode_batch(data)
            if not data.isascii():
                data.decode()
        else:
            return RpcFrame((_entry(data, nested=False),), False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return RpcFrame((Refusal(error_answer(NULL, PARSE_ERROR, _reason(error))),), False)
    if not items:
        return RpcFrame(
            (Refusal(error_answer(NULL, INVALID_REQUEST, "the batch is empty")),), False
        )
    if len(items) > batch_max:
        detail = f"the batch holds {len(items)} calls, more than the {batch_max} allowed"
        return RpcFrame((Refusal(error_answer(NULL, INVALID_REQUEST, detail)),), False)
    return RpcFrame([_entry(bytes(item), nested=True) for item in items], True)


def _fast_call(data: bytes) -> Call | None:
    """A well-formed call, or None; `_entry` then finds the reason for the refusal."""
    try:
        envelope = _decode_envelope(data)
        if not data.isascii():
            data.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    params, call_id = bytes(envelope.params), bytes(envelope.id)
    if envelope.jsonrpc != "2.0" or params[:1] not in (b"{", b"[", b""):
        return None
    if not call_id:
        return Call(envelope.method, params, None)
    legal = call_id[0] in b'"-0123456789' or call_id == NULL
    return Call(envelope.method, params, call_id) if legal else None


def _entry(data: bytes, *, nested: bool) -> Call | Refusal:
    call = _fast_call(data)
    if call is not None:
        return call
    try:
        value: Any = _decode_any(data)
        data.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        code = INVALID_REQUEST if nested else PARSE_ERROR
        return _surrogate_refusal(data) or Refusal(error_answer(NULL, code, _reason(error)))
    return Refusal(error_answer(_legal_id(value), INVALID_REQUEST, _defect(value)))


def _surrogate_refusal(data: bytes) -> Refusal | None:
    """The refusal of a call whose only defect is half of a surrogate pair in a string.

    The caller waits for an answer with its id, and the id of such a call can be read.
    """
    if b"\\u" not in data:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return None
    try:
        call_id = _legal_id(value)
    except (msgspec.MsgspecError, ValueError):
        call_id = NULL
    detail = "a text holds half of a surrogate pair"
    return Refusal(error_answer(call_id, INVALID_PARAMS, detail, InputInvalid.code))


def _defect(value: Any) -> str:
    if not isinstance(value, dict):
        return "a call is an object"
    if value.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if not isinstance(value.get("method"), str):
        return "method must be a string"
    if "params" in value and not isinstance(value["params"], dict | list):
        return "params must be an object or a list"
    return "id must be a string, a number or null"


def _legal_id(value: Any) -> bytes:
    found = value.get("id") if isinstance(value, dict) else None
    if isinstance(found, str | int | float) and not isinstance(found, bool):
        return msgspec.json.encode(found)
    return NULL


def _reason(error: Exception) -> str:
    return str(error)[:DETAIL_CHARS_MAX]


def result_answer(call_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","result":%b,"id":%b}' % (result, call_id)


def error_answer(call_id: bytes, code: int, detail: str, name: str | None = None) -> bytes:
    """`data` holds our name of the error and a detail that contains no payload."""
    error: dict[str, Any] = {"code": code, "message": MEANINGS.get(code, detail)}
    error["data"] = {"code": name, "detail": detail} if name else {"detail": detail}
    return b'{"jsonrpc":"2.0","error":%b,"id":%b}' % (msgspec.json.encode(error), call_id)


def failure_answer(call_id: bytes, error: BaseException) -> bytes:
    """The detail of an unexpected error goes to the log only."""
    if isinstance(error, AngariumError):
        code = CODES.get(error.code, INTERNAL_ERROR)
        return error_answer(call_id, code, str(error)[:DETAIL_CHARS_MAX], error.code)
    return error_answer(call_id, INTERNAL_ERROR, "something went wrong; the log says what")


def batch_answer(answers: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(answers) + b"]"


def notification(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params)
