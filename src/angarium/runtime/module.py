"""The manifest of a module: everything that others need to know of it.

A module declares in its `module.py` which keys, settings, events, roles, rates and HTTP operations
it has. Server, access, dashboard, `top`, the lake's catalogue and the generated pages read the
manifests; nobody else keeps a list. What is expensive to import (settings, services, HTTP) is
named by its path and imported when it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from angarium.runtime.key import Key

Functions = Literal["worker", "step", "inbox"]


class Part(StrEnum):
    """What an event does to the life cycle of its subject."""

    ANNOUNCE = "announce"  # waits to be accepted: must be stored already, and is not counted yet
    ACCEPT = "accept"  # begins it
    REOPEN = "reopen"  # begins it again after an end
    STEP = "step"  # in between
    END = "end"  # ends it, with an outcome
    BESIDE = "beside"  # may come before or after the end, and changes nothing
    NONE = "none"  # belongs to no life cycle


Outcome = Literal["", "delivered", "expired", "cancelled", "dead", "failed"]
Stage = Literal["", "accepted", "worked", "paused", "ended", "notified", "archived"]


@dataclass(frozen=True)
class Event:
    """One event that the module's scripts write to the journal."""

    name: str
    part: Part
    account: str = ""
    """The life cycle it belongs to: what must balance, accepted = ended + in flight."""
    outcome: Outcome = ""
    stage: Stage = ""
    retry: bool = False
    """Something is done again, or will have to be."""


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
) -> Iterator[Event]:
    """The events of one account, each argument a list of names divided by spaces.

    `paused`, `retried` and `archived` name some of the others once more: those after which nobody
    works on the subject, those that mean that something is done again, those that move it away.
    """
    pauses, retries, moves = paused.split(), retried.split(), archived.split()

    def events(names: str, part: Part, stage: Stage, outcome: Outcome = "") -> Iterator[Event]:
        for name in names.split():
            at: Stage = "archived" if name in moves else "paused" if name in pauses else stage
            yield Event(name, part, account, outcome, at, name in retries)

    yield from events(announce, Part.ANNOUNCE, "accepted")
    yield from events(accept, Part.ACCEPT, "accepted")
    yield from events(reopen, Part.REOPEN, "accepted")
    yield from events(step, Part.STEP, "worked")
    for outcome, names in end.items():
        yield from events(names, Part.END, "ended", outcome)
    yield from events(beside, Part.BESIDE, "notified")


def notes(names: str) -> Iterator[Event]:
    """Events that belong to no account."""
    for name in names.split():
        yield Event(name, Part.NONE)


@dataclass(frozen=True)
class Role:
    """A service that `angarium serve` starts. The file at `path` offers `build` and `check`."""

    name: str
    path: str
    needs: Functions | None = None
    """Functions of the application; `up` leaves the role out where there are none."""


@dataclass(frozen=True)
class Rate:
    """An event per second on the dashboard and in `top`, from what a role counts."""

    name: str
    role: str
    counter: str
    """With a star at its end: all counters that begin so."""
    label: str = ""
    """Its word in `top`; empty where it is not shown."""


@dataclass(frozen=True)
class KeyName:
    """A key whose name follows a setting of the module."""

    key: Key
    setting: str
    ending: str = ""
    """Behind the setting's value."""


@dataclass(frozen=True)
class Module:
    name: str
    keys: tuple[Key, ...] = ()
    key_names: tuple[KeyName, ...] = ()
    settings: str = ""
    """Path of the class of its settings: `angarium.dispatch.settings:DispatchSettings`."""
    events: tuple[Event, ...] = ()
    ids_once: tuple[str, ...] = ()
    """Accounts whose ids are accepted once in all time; elsewhere an id may come again."""
    roles: tuple[Role, ...] = ()
    rates: tuple[Rate, ...] = ()
    http: str = ""
    """The file that offers `http_api(runtime, app)`."""
    overview: str = ""
    """Path of the class that samples the module for the dashboard and `top`."""


def imported(path: str) -> Any:
    """What `package.file:name` stands for."""
    file, _, name = path.partition(":")
    return getattr(importlib.import_module(file), name)
