"""All errors that Angarium raises itself, named by what happened.

    AngariumError
    ├── SettingInvalid            a setting is unknown or its value can't be used   (exit 2)
    │   ├── LayoutMismatch        Redis holds data written under other settings
    │   ├── ServerUnsuitable      too old, would evict, or can't give the durability asked for
    │   └── ServerMissing         no Redis or Valkey binary for the embedded server
    ├── RedisUnavailable          nothing was sent: safe to try again
    ├── DatabaseUnavailable       down, full or refusing to write: nothing was stored
    ├── OutcomeUnknown            sent, but the answer was lost: it may or may not have happened
    ├── ScriptFailed              a script or command was refused by Redis
    ├── NotDurable                written, but not confirmed at the durability asked for
    ├── Overloaded                a named limit is full
    │   └── JournalFull           its readers are too far behind: new work is refused
    ├── LimitExceeded             one input is larger than its limit
    ├── LeaseLost                 a newer term exists: the old holder may write nothing
    ├── InputInvalid              an input can't be decoded or breaks a rule: nothing was changed
    │   └── CommandInvalid        an argument can't be encoded for Redis: nothing was sent
    ├── Forbidden                 the caller may not do this
    ├── NotFound                  there is nothing with that id
    └── Conflict                  its state does not allow the operation

`redis/errors.py` declares the errors of the Redis client. A module's own errors are in its
`errors.py`, as subclasses of these.

Each class has the code that is sent to clients. The protocols' tables are built from these codes,
so an error has one name everywhere.

"""

from __future__ import annotations

from angarium.redis.errors import (
    AngariumError,
    CommandInvalid,
    InputInvalid,
    OutcomeUnknown,
    Overloaded,
    RedisUnavailable,
    ScriptFailed,
    ServerMissing,
    ServerUnsettled,
    ServerUnsuitable,
    SettingInvalid,
)

__all__ = [
    "AngariumError",
    "CommandInvalid",
    "Conflict",
    "DatabaseUnavailable",
    "Forbidden",
    "InputInvalid",
    "JournalFull",
    "LayoutMismatch",
    "LeaseLost",
    "LimitExceeded",
    "NotDurable",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "RedisUnavailable",
    "ScriptFailed",
    "ServerMissing",
    "ServerUnsettled",
    "ServerUnsuitable",
    "SettingInvalid",
]


class LayoutMismatch(SettingInvalid):
    code = "layout_mismatch"


# How the answer of a script that refuses new work begins.
JOURNAL_FULL = "JOURNALFULL"


class JournalFull(Overloaded):
    """Nothing was changed. Work that was accepted before goes on."""

    code = "journal_full"

    def __init__(self) -> None:
        super().__init__("journal.bytes_max")


class DatabaseUnavailable(AngariumError):
    code = "database_unavailable"
    http_status = 503


class Forbidden(AngariumError):
    code = "forbidden"
    http_status = 403


class NotDurable(AngariumError):
    code = "not_durable"
    http_status = 503


class LimitExceeded(AngariumError):
    code = "limit_exceeded"
    http_status = 413

    def __init__(self, limit: str, value: int, maximum: int) -> None:
        super().__init__(f"{limit}: {value} is more than the {maximum} allowed")
        self.limit = limit


class LeaseLost(AngariumError):
    code = "lease_lost"
    http_status = 409


class NotFound(AngariumError):
    code = "not_found"
    http_status = 404


class Conflict(AngariumError):
    code = "conflict"
    http_status = 409
