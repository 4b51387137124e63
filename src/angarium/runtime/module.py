"""The manifest of a module: everything that other code needs to know about it.

A module declares in its `module.py` which keys, settings, limits, events, roles, metrics, rates and
HTTP operations it has. Server, access, dashboard, `top`, the lake's catalogue and the generated
pages read the manifests; there is no other list. Settings, services and HTTP are slow to import, so
a manifest contains their paths and they are imported when they are used.

`RUNTIME` is the runtime's own manifest: what every installation has, whatever its modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from angarium.runtime import keys
from angarium.runtime.keyspace import Key
from angarium.runtime.limits import Limits

Functions = Literal["worker", "step", "inbox"]


class Part(StrEnum):
    """What an event does to the life cycle of its subject."""

    ANNOUNCE = "announce"  # the subject is stored and waits to be accepted; it is not counted yet
    ACCEPT = "accept"  # begins the life cycle
    REOPEN = "reopen"  # begins it again after it ended
    STEP = "step"  # between begin and end
    END = "end"  # ends it with an outcome
    BESIDE = "beside"  # before or after the end; does not change the life cycle
    NONE = "none"  # belongs to no life cycle


Outcome = Literal["", "delivered", "expired", "cancelled", "dead", "failed"]
Stage = Literal["", "accepted", "worked", "paused", "ended", "notified", "archived"]


@dataclass(frozen=True)
class EventType:
    """One event that the module's scripts write to the journal."""

    name: str
    part: Part
    account: str = ""
    """The life cycle it belongs to. In each account accepted = ended + in flight."""
    outcome: Outcome = ""
    stage: Stage = ""
    retry: bool = False
    """Whether the event means that work is repeated."""


def life_cycle(
    account: str,
    *,
    announce: str = "",
    accept: str,
    reopen: str = "",
    step: str = "",
    end: Mapping[Outcome, str],
    beside: str = "",
    paused: str = "",
    retried: str = "",
    archived: str = "",
) -> Iterator[EventType]:
    """The events of one account. Each argument is a list of names separated by spaces.

    `paused`, `retried` and `archived` repeat some of these names: events after which nobody works
    on the subject, events that mean that work is repeated, events that move the subject away.
    """
    pauses, retries, moves = paused.split(), retried.split(), archived.split()

    def events(names: str, part: Part, stage: Stage, outcome: Outcome = "") -> Iterator[EventType]:
        for name in names.split():
            at: Stage = "archived" if name in moves else "paused" if name in pauses else stage
            yield EventType(name, part, account, outcome, at, name in retries)

    yield from events(announce, Part.ANNOUNCE, "accepted")
    yield from events(accept, Part.ACCEPT, "accepted")
    yield from events(reopen, Part.REOPEN, "accepted")
    yield from events(step, Part.STEP, "worked")
    for outcome, names in end.items():
        yield from events(names, Part.END, "ended", outcome)
    yield from events(beside, Part.BESIDE, "notified")


def other_events(names: str) -> Iterator[EventType]:
    """Events that belong to no account."""
    for name in names.split():
        yield EventType(name, Part.NONE)


@dataclass(frozen=True)
class Role:
    """A service that `angarium serve` starts. The file at `path` offers `build` and `check`."""

    name: str
    path: str
    needs: Functions | None = None
    """The kind of function that the role needs; `up` does not start it without such a function."""


@dataclass(frozen=True)
class Rate:
    """Events per second on the dashboard and in `top`, from a counter of a role."""

    name: str
    role: str
    counter: str
    """A name with a star at its end means all counters that begin with it."""
    label: str = ""
    """The name in `top`; if empty, `top` does not show it."""


@dataclass(frozen=True)
class ReportedMetric:
    """A number that a role reports. Prometheus gets it as `angarium_<role>_<name>`, a counter with
    the ending `_total`."""

    role: str
    name: str
    """A name with a star at its end means all that begin with it."""
    kind: Literal["counter", "gauge"]
    unit: str
    help: str


def reported_metrics(
    role: str, *, counters: str = "", gauges: str = ""
) -> Iterator[ReportedMetric]:
    """The metrics of one role. Each line has a name, a unit and a sentence for its readers."""
    kinds: tuple[tuple[Literal["counter", "gauge"], str], ...] = (
        ("counter", counters),
        ("gauge", gauges),
    )
    for kind, lines in kinds:
        for line in lines.strip().splitlines():
            name, unit, text = line.split(maxsplit=2)
            yield ReportedMetric(role, name, kind, unit, text)


@dataclass(frozen=True)
class KeyName:
    """A key whose name follows a setting of the module."""

    key: Key
    setting: str
    ending: str = ""
    """Text after the setting's value."""


@dataclass(frozen=True)
class Module:
    name: str
    keys: tuple[Key, ...] = ()
    key_names: tuple[KeyName, ...] = ()
    settings: str = ""
    """Path of the class of its settings: `angarium.dispatch.settings:DispatchSettings`."""
    limits: type[Limits] = Limits
    events: tuple[EventType, ...] = ()
    ids_once: tuple[str, ...] = ()
    """Accounts whose ids are accepted only once; in other accounts an id may be accepted again."""
    roles: tuple[Role, ...] = ()
    rates: tuple[Rate, ...] = ()
    metrics: tuple[ReportedMetric, ...] = ()
    http: str = ""
    """Path of the file with the function `http_api(runtime, app)`."""
    overview: str = ""
    """Path of the class that samples the module for the dashboard and `top`."""


RUNTIME = Module(
    "runtime",
    keys=keys.KEYS,
    events=tuple(other_events("token_stored token_revoked")),
)
# Leases write their own events, whichever module holds them.
LEASE = Module("lease", events=tuple(other_events("acquired released")))
