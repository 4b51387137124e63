"""Which messages a worker holds, when deliveries and answers cross."""

from __future__ import annotations

from typing import cast

from angarium.dispatch.dispatcher_connection import DispatcherConnection
from angarium.dispatch.held_messages import HeldMessages

M = b"1-0"


class Connection:
    """The part of a connection that is counted and asked here."""

    held = 0
    is_open = True
    lease_ms = 2_000


def connection() -> DispatcherConnection:
    return cast(DispatcherConnection, Connection())


def test_a_message_that_arrives_again_while_it_runs_is_not_run_twice() -> None:
    held, first, second = HeldMessages(), connection(), connection()
    assert held.add(M, first, 0.0)
    assert not held.add(M, second, 1.0)
    assert (first.held, second.held) == (0, 1)
    assert held.remove(M) is second


def test_a_lost_message_that_comes_back_while_it_runs_is_not_run_twice() -> None:
    held, sender = HeldMessages(), connection()
    held.add(M, sender, 0.0)
    assert held.lose([M]) == 1
    assert M in held.lost
    assert not held.add(M, sender, 1.0)
    assert held.remove(M) is sender


def test_a_message_that_comes_back_before_the_reply_to_its_failure_runs_again() -> None:
    """Redis has stored the failure and the message is due at once. The dispatcher releases the
    old delivery and sends the new one, and both arrive before the reply of Redis."""
    for released in (True, False):
        held, sender, failure = HeldMessages(), connection(), object()
        held.add(M, sender, 0.0)
        held.begin_failure(M, failure)
        if released:
            assert held.lose([M]) == 0
        assert held.add(M, sender, 1.0)
        assert sender.held == 1
        assert not held.is_failing(M, failure), "the new delivery gets no answer to the old one"
        again = object()
        held.begin_failure(M, again)
        assert held.is_failing(M, again)
        assert not held.is_failing(M, failure)


def test_a_message_is_renewed_until_its_failure_is_stored() -> None:
    held, sender = HeldMessages(), connection()
    held.add(M, sender, 0.0)
    held.begin_failure(M, object())
    assert held.to_renew(1.0, 1.0, []) == {sender: [M]}


def test_what_arrives_again_is_renewed_in_its_turn() -> None:
    held, sender = HeldMessages(), connection()
    held.add(M, sender, 0.0)
    held.add(b"2-0", sender, 5.0)
    held.add(M, sender, 9.0)
    assert held.to_renew(6.0, 10.0, []) == {sender: [b"2-0"]}


def test_a_lost_message_whose_run_has_failed_runs_again_when_it_comes_back() -> None:
    held, sender = HeldMessages(), connection()
    held.add(M, sender, 0.0)
    assert held.lose([M]) == 1
    held.begin_failure(M, object())
    assert held.add(M, sender, 1.0), "or it would be renewed for ever and never run"
