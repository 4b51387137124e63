"""What can go wrong in the pickup module alone, and the JSON-RPC code of every error.

The codes from -32768 to -32600 are JSON-RPC's own; those of the gateway are from -32099 to
-32000, one for each kind of error, so that a client can tell what to do without reading text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from angarium.runtime.errors import AngariumError, Conflict, InputInvalid, NotDurable, Overloaded

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


class QueueFull(Conflict):
    """The connection has as many messages, or bytes, as it may have."""

    code = "queue_full"
    http_status = 409


class RateExceeded(AngariumError):
    """The client made more calls in a second than it may."""

    code = "rate_exceeded"
    http_status = 429


class SessionsExceeded(AngariumError):
    """The client has as many live sessions as it may have."""

    code = "sessions_exceeded"
    http_status = 429


class AnswersExceeded(AngariumError):
    """The answers of a batch have as many bytes as they may have; this call was not run."""

    code = "answers_exceeded"
    http_status = 413


class MethodUnknown(AngariumError):
    """There is no such method."""

    code = "method_unknown"
    http_status = 404


class GatewayQuiet(AngariumError):
    """The gateway is stopping; another one, or this one in a moment, will answer."""

    code = "gateway_quiet"
    http_status = 503


# «Try again later» is -32000; -32001 means that it may have happened; the rest is for the caller.
CODES: Mapping[str, int] = MappingProxyType(
    {
        InputInvalid.code: INVALID_PARAMS,
        MethodUnknown.code: METHOD_NOT_FOUND,
        "redis_unavailable": -32000,
        "database_unavailable": -32000,
        Overloaded.code: -32000,
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
