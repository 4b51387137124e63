"""The messages that a worker holds: where each came from, and when it was last renewed.

Does no I/O and reads no clock. A worker holds a message from its arrival until the worker answers
for it or a dispatcher releases it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from angarium.dispatch.dispatcher_connection import DispatcherConnection
from angarium.dispatch.frames import DispatchedMessage


class HeldMessages:
    def __init__(self) -> None:
        # Where each came from and when it was last renewed; oldest renewal first.
        self._held: dict[bytes, tuple[DispatcherConnection, float]] = {}
        self.lost: set[bytes] = set()  # released by a dispatcher, and still running or queued
        self._failures: dict[bytes, object] = {}  # failures that are being stored

    def __len__(self) -> int:
        return len(self._held)

    def add_all(
        self, messages: Sequence[DispatchedMessage], connection: DispatcherConnection, now_s: float
    ) -> Sequence[DispatchedMessage]:
        """Those of the messages that the worker has to run."""
        added = dict.fromkeys([message_id for message_id, _ in messages], (connection, now_s))
        if len(added) == len(messages) and not self.lost and self._held.keys().isdisjoint(added):
            self._held.update(added)
            connection.held += len(added)
            return messages
        return [each for each in messages if self.add(each[0], connection, now_s)]

    def add(self, message_id: bytes, connection: DispatcherConnection, now_s: float) -> bool:
        """False if the worker has the message already: it runs once. A message whose failure is
        being stored is a new delivery: Redis has stored the failure, and the reply is on its way.
        """
        before = self._held.pop(message_id, None)  # the newest is the last
        self._held[message_id] = connection, now_s
        connection.held += 1
        if before is None and message_id not in self.lost:
            return True
        if before is not None:
            before[0].held -= 1
        self.lost.discard(message_id)
        return self._failures.pop(message_id, None) is not None

    def remove(self, message_id: bytes) -> DispatcherConnection | None:
        """The connection that gets the answer; None if the message was lost."""
        return next(iter(self.remove_all([message_id])), None)

    def remove_all(self, ids: Iterable[bytes]) -> dict[DispatcherConnection, list[bytes]]:
        """The connections that get the answers, with those of the messages that were not lost."""
        if self.lost or self._failures:
            ids = list(ids)
            self.lost.difference_update(ids)
            for message_id in ids:
                self._failures.pop(message_id, None)
        found: dict[DispatcherConnection, list[bytes]] = {}
        held = self._held
        for message_id in ids:
            entry = held.pop(message_id, None)
            if entry is None:
                continue
            connection = entry[0]
            if connection in found:
                found[connection].append(message_id)
            else:
                found[connection] = [message_id]
        for connection, own in found.items():
            connection.held -= len(own)
        return found

    def begin_failure(self, message_id: bytes, failure: object) -> None:
        """The failure is being stored. Until then the message is renewed, unless it was lost: then
        its run is over, and a next delivery is a new run."""
        if message_id in self._held:
            self._failures[message_id] = failure
        else:
            self.lost.discard(message_id)

    def is_failing(self, message_id: bytes, failure: object) -> bool:
        """False if the message was answered for, or was delivered again after this failure."""
        return self._failures.get(message_id) is failure

    def lose(self, ids: Iterable[bytes]) -> int:
        """A dispatcher released these messages: another worker may have them, or they are finished.
        Returns how many of them the worker had not finished."""
        count = 0
        for message_id in ids:
            running = message_id not in self._failures
            if self.remove(message_id) is not None and running:
                self.lost.add(message_id)
                count += 1
        return count

    @property
    def orphans(self) -> list[bytes]:
        """Messages whose connection is closed."""
        return [each for each, (connection, _) in self._held.items() if not connection.is_open]

    def to_renew(
        self, before_s: float, now_s: float, others: Iterable[DispatcherConnection]
    ) -> dict[DispatcherConnection, list[bytes]]:
        """The messages whose last renewal is older than `before_s`, by connection. A message whose
        connection is closed moves to one of the `others`."""
        old = []
        for message_id, (connection, renewed_s) in self._held.items():
            if renewed_s > before_s:
                break
            old.append((message_id, connection))
        other = next((each for each in others if each.is_open and each.lease_ms), None)
        found: dict[DispatcherConnection, list[bytes]] = {}
        for message_id, connection in old:
            if not connection.is_open and other is not None:
                connection.held -= 1
                other.held += 1
                connection = other
            if connection.is_open and connection.lease_ms:
                found.setdefault(connection, []).append(message_id)
                del self._held[message_id]
                self._held[message_id] = connection, now_s
        return found
