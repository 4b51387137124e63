"""Every error Angarium raises on purpose, named by what happened.

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
    ├── LimitExceeded             one input is larger than its limit
    ├── LeaseLost                 a newer term exists: the old holder may write nothing
    ├── InputInvalid              what came in can't be read or breaks a rule: nothing was done
    │   └── CommandInvalid        an argument has no form that Redis takes: nothing was sent
    ├── NotFound                  there is nothing under that id
    └── Conflict                  it is not in a state in which this can be done

A room's own errors stand in its `errors.py`, under one of these.

Each class carries the code that goes over the wire; the tables of the protocols are built
from these codes, so an error has one name everywhere.
"""

from __future__ import annotations

from typing import ClassVar


class AngariumError(Exception):
    """Base of all errors below. `code` is stable and goes over the wire."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500


class SettingInvalid(AngariumError):
    """Names the setting and the fix in one line; the command line exits with 2."""

    code = "setting_invalid"

    def __init__(self, setting: str, problem: str, fix: str) -> None:
        super().__init__(f"{setting}: {problem}; {fix}")
        self.setting = setting
        self.problem = problem
        self.fix = fix


class LayoutMismatch(SettingInvalid):
    code = "layout_mismatch"


class ServerUnsuitable(SettingInvalid):
    code = "server_unsuitable"


class ServerUnsettled(ServerUnsuitable):
    """It can't keep the promise now, and may in a moment: it came up or took over just now."""


class ServerMissing(SettingInvalid):
    code = "server_missing"


class RedisUnavailable(AngariumError):
    code = "redis_unavailable"
    http_status = 503


class DatabaseUnavailable(AngariumError):
    code = "database_unavailable"
    http_status = 503


class OutcomeUnknown(AngariumError):
    code = "outcome_unknown"
    http_status = 503


class ScriptFailed(AngariumError):
    code = "script_failed"


class NotDurable(AngariumError):
    code = "not_durable"
    http_status = 503


class Overloaded(AngariumError):
    code = "overloaded"
    http_status = 503

    def __init__(self, limit: str, value: int | None = None) -> None:
        at = "" if value is None else f" at {value}"
        super().__init__(f"{limit} is full{at}; try again later or raise the limit")
        self.limit = limit


class LimitExceeded(AngariumError):
    code = "limit_exceeded"
    http_status = 413

    def __init__(self, limit: str, value: int, maximum: int) -> None:
        super().__init__(f"{limit}: {value} is more than the {maximum} allowed")
        self.limit = limit


class LeaseLost(AngariumError):
    code = "lease_lost"
    http_status = 409


class InputInvalid(AngariumError):
    code = "input_invalid"
    http_status = 400


class CommandInvalid(InputInvalid):
    """Raised before anything is sent, and to the caller of that command only."""


class NotFound(AngariumError):
    code = "not_found"
    http_status = 404


class Conflict(AngariumError):
    code = "conflict"
    http_status = 409
