"""Errors of the pickup module, and the JSON-RPC code of every error.

JSON-RPC reserves the codes from -32768 to -32600. The gateway uses -32099 to -32000, one for each
kind of error, so a client can decide by the code alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from angarium.runtime.errors import (
    AngariumError,
    Conflict,
    InputInvalid,
    JournalFull,
    NotDurable,
    Overloaded,
)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


class QueueFull(Conflict):
    """The connection's queue has reached its limit of messages or bytes."""

    code = "queue_full"
    http_status = 409


class RateExceeded(AngariumError):
    """The client made too many calls in one second."""

    code = "rate_exceeded"
    http_status = 429


class SessionsExceeded(AngariumError):
    """The client has reached its limit of live sessions."""

    code = "sessions_exceeded"
    http_status = 429


class AnswersExceeded(AngariumError):
    """The answers of a batch have reached their limit of bytes; this call was not run."""

    code = "answers_exceeded"
    http_status = 413


class MethodUnknown(AngariumError):
    code = "method_unknown"
    http_status = 404


class GatewayQuiet(AngariumError):
    """The gateway is stopping; the client should connect again."""

    code = "gateway_quiet"
    http_status = 503


# -32000: try again later. -32001: the call may have been executed. The others: change the call.
CODES: Mapping[str, int] = MappingProxyType(
    {
        InputInvalid.code: INVALID_PARAMS,
        MethodUnknown.code: METHOD_NOT_FOUND,
        "redis_unavailable": -32000,
        "database_unavailable": -32000,
        Overloaded.code: -32000,
        JournalFull.code: -32000,
        GatewayQuiet.code: -32000,
        "outcome_unknown": -32001,
        NotDurable.code: -32001,
        QueueFull.code: -32002,
        "limit_exceeded": -32003,
        RateExceeded.code: -32004,
        SessionsExceeded.code: -32005,
        AnswersExceeded.code: -32006,
    }
)
