"""What can go wrong between a caller and Redis.

    AngariumError
    ├── SettingInvalid            an option is unknown or its value can't be used
    │   ├── ServerUnsuitable      too old, would evict, or can't give the durability asked for
    │   │   └── ServerUnsettled   the same, but the server started or took over just now
    │   └── ServerMissing         no Redis or Valkey binary for the embedded server
    ├── InputInvalid
    │   └── CommandInvalid        an argument has no form that Redis takes: nothing was sent
    ├── RedisUnavailable          nothing was sent: safe to try again
    ├── OutcomeUnknown            sent, but the reply was lost: it may or may not have happened
    ├── Overloaded                a named limit is full
    └── ScriptFailed              Redis refused a script or a command

The rest of the tree is in `runtime/errors.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class AngariumError(Exception):
    """Base of every error that Angarium raises on purpose. `code` is stable, and on the wire."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark carries errors from its workers to the driver by pickle.
        return type(self), (self.setting, self.problem, self.fix)


class ServerUnsuitable(SettingInvalid):
    code = "server_unsuitable"


class ServerUnsettled(ServerUnsuitable):
    """The server can't keep the promise yet: it started, or took over, a moment ago."""


class ServerMissing(SettingInvalid):
    code = "server_missing"


class InputInvalid(AngariumError):
    code = "input_invalid"
    http_status = 400


class CommandInvalid(InputInvalid):
    """Raised before anything is sent, and to the caller of that command only."""


class RedisUnavailable(AngariumError):
    code = "redis_unavailable"
    http_status = 503


class OutcomeUnknown(AngariumError):
    code = "outcome_unknown"
    http_status = 503


class ScriptFailed(AngariumError):
    code = "script_failed"


class Overloaded(AngariumError):
    code = "overloaded"
    http_status = 503

    def __init__(self, limit: str, value: int | None = None) -> None:
        at = "" if value is None else f" at {value}"
        super().__init__(f"{limit} is full{at}; try again later or raise the limit")
        self.limit = limit
