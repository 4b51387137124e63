"""Instances of an application, over all partitions."""

from __future__ import annotations

from dataclasses import dataclass

from angarium.routing.transitions import ListedUid

# A retired instance has the heartbeat 0. Redis' clock counts from 1970, and nothing is so old.
RETIRED_MS = 10 * 365 * 86_400_000


@dataclass(frozen=True)
class RoutingInstance:
    """One registered instance over all partitions; `silent_ms` is None without a heartbeat.

    `retired`: it was stopped, and keeps keys until messages wait for them.
    """

    uid: str
    silent_ms: int | None
    keys: int
    has_mail: bool
    live: bool
    retired: bool = False


@dataclass(frozen=True)
class InstanceSweep:
    """`again`: one call may not do all the work that was found. `aging`: a round over all keys is
    under way."""

    assigned: int
    moved: int
    again: bool
    instances: int = 0
    removed: int = 0
    forgotten: int = 0
    aging: bool = False


def merged(one: RoutingInstance | None, row: ListedUid) -> RoutingInstance:
    """One instance in two partitions: the sum of its keys, and its latest heartbeat."""
    retired = row.silent_ms > RETIRED_MS
    other = RoutingInstance(
        row.uid, heartbeat_age_ms(row.silent_ms), row.keys, row.has_mail, row.live, retired
    )
    if one is None:
        return other
    known = [each for each in (one.silent_ms, other.silent_ms) if each is not None]
    return RoutingInstance(
        one.uid,
        min(known) if known else None,
        one.keys + other.keys,
        one.has_mail or other.has_mail,
        one.live or other.live,
        one.retired and other.retired,
    )


def heartbeat_age_ms(silent_ms: int) -> int | None:
    """None without a heartbeat: the instance never had one, or it has retired."""
    return silent_ms if 0 <= silent_ms <= RETIRED_MS else None
