"""Which event begins, moves and ends which account: all that the lake knows of the rooms.

An account is what has to balance: accepted = finished + in flight. Most events belong to one
account of their room; some are only told (a lease, a session, a webhook). The catalogue follows the
tables on the rooms' pages and the `note` calls of their scripts; a test reads the scripts and fails
when one writes an event that is not here. Pure: no Spark, no Redis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Role(StrEnum):
    """What an event does to the account of its subject."""

    ANNOUNCE = "announce"  # waits to be accepted; must be somewhere already, is not counted yet
    ACCEPT = "accept"  # begins it
    REOPEN = "reopen"  # begins it again after an end
    STEP = "step"  # in between
    END = "end"  # finishes it, with an outcome
    BESIDE = "beside"  # may come before or after the end, and changes nothing
    TOLD = "told"  # belongs to no account


@dataclass(frozen=True)
class Meaning:
    """One event of one room. `outcome` is set for ends only."""

    room: str
    event: str
    role: Role
    account: str = ""
    outcome: str = ""
    stage: str = ""
    retry: bool = False


# Outcomes are few on purpose: they are columns of the audit.
OUTCOMES = ("delivered", "expired", "cancelled", "dead", "failed")

_ROOMS: Mapping[str, Mapping[str, Mapping[Role, str]]] = MappingProxyType(
    {
        "dispatch": {
            "message": {
                Role.ANNOUNCE: "enqueued",
                Role.ACCEPT: "accepted",
                Role.REOPEN: "retried",
                Role.STEP: "redelivered rejected returned",
                Role.END: "completed=delivered acknowledged=delivered dead=dead dropped=dead",
                Role.BESIDE: "discarded",
            },
            "": {Role.TOLD: "refused"},
        },
        "routing": {
            "inbound": {Role.ACCEPT: "accepted", Role.END: "handled=delivered dead=dead"},
            "outbound": {
                Role.ACCEPT: "outbound_accepted",
                Role.STEP: "outbound_retried",
                Role.END: "outbound_delivered=delivered outbound_dead=dead",
            },
            "": {Role.TOLD: "assigned reassigned registered retired removed"},
        },
        "conversations": {
            "request": {
                Role.ACCEPT: "requested",
                Role.END: "answered=delivered request_expired=expired request_removed=cancelled",
            },
            "reply": {
                Role.ACCEPT: "accepted",
                Role.STEP: "taken awaited sent",
                Role.END: "delivered=delivered expired=expired cancelled=cancelled",
            },
        },
        "pickup": {
            "message": {
                Role.ACCEPT: "accepted",
                Role.STEP: "sent returned archived",
                Role.END: "delivered=delivered cancelled=cancelled expired=expired",
            },
            "": {
                Role.TOLD: "session_opened session_replaced session_closed "
                "push_scheduled pushed push_retried push_failed",
            },
        },
        "transactions": {
            "transaction": {
                Role.ACCEPT: "started",
                Role.STEP: "taken advanced progressed slept woken called resumed switched "
                "cancel_asked returned recovered step_awaited",
                Role.END: "completed=delivered cancelled=cancelled expired=expired",
                Role.BESIDE: "notified webhook_tried webhook_failed webhook_delivered "
                "webhook_given_up webhook_cancelled archived",
            },
            # An id without a state has no account: the one it had ended long ago, or never was.
            "": {Role.TOLD: "pipeline_stored dropped"},
        },
        "lease": {"": {Role.TOLD: "acquired released granted"}},
        "runtime": {"": {Role.TOLD: "token_stored token_revoked"}},
    }
)


# The stages of a life whose first and last times `messages` keeps.
STAGES = ("accepted", "worked", "paused", "ended", "notified", "archived")
_BEGINS = (Role.ANNOUNCE, Role.ACCEPT, Role.REOPEN)
_PAUSES = frozenset(
    [
        "rejected",
        "returned",
        "awaited",
        "slept",
        "called",
        "recovered",
        "step_awaited",
        "outbound_retried",
    ]
)
_FILED = frozenset(("archived", "discarded"))
# What somebody had to do again, or will have to.
_RETRIES = frozenset(
    [
        "redelivered",
        "rejected",
        "returned",
        "outbound_retried",
        "awaited",
        "recovered",
        "webhook_failed",
    ]
)


def _stage(role: Role, event: str) -> str:
    if role in _BEGINS:
        return "accepted"
    if role is Role.TOLD:
        return ""
    if role is Role.END:
        return "ended"
    if event in _FILED:
        return "archived"
    if role is Role.BESIDE:
        return "notified"
    return "paused" if event in _PAUSES else "worked"


def _meanings() -> Iterator[Meaning]:
    for room, accounts in _ROOMS.items():
        for account, roles in accounts.items():
            for role, events in roles.items():
                for each in events.split():
                    event, _, outcome = each.partition("=")
                    stage = _stage(role, event)
                    yield Meaning(room, event, role, account, outcome, stage, event in _RETRIES)


CATALOGUE: tuple[Meaning, ...] = tuple(_meanings())
ROOMS: tuple[str, ...] = tuple(_ROOMS)

# Of an event's status, those that make a transaction's `completed` something else than delivered.
FAILED_STATUSES = ("failed", "aborted", "internal-error")
# Accounts whose subjects are accepted once in all time; elsewhere an id may come again.
ONCE = (("dispatch", "message"), ("pickup", "message"), ("transactions", "transaction"))
