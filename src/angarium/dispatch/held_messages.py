"""The messages that a worker holds: where each came from, and when it was last renewed.

Does no I/O and reads no clock. A worker holds a message from its arrival until the worker answers
for it or a dispatcher releases it.
"""

from __future__ import annotations

from collections.abc import Iterable

from angarium.dispatch.dispatcher_connection import DispatcherConnection


class HeldMessages:
    def __init__(self) -> None:
        self._connections: dict[bytes, DispatcherConnection] = {}
        self._renewed_s: dict[bytes, float] = {}  # oldest first
        self.lost: set[bytes] = set()  # released by a dispatcher, and still running or queued
        self._failures: dict[bytes, object] = {}  # failures that are being stored

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, message_id: bytes, connection: DispatcherConnection, now_s: float) -> bool:
        """False if the worker has the message already: it runs once. A message whose failure is
        being stored is a new delivery: Redis has stored the failure, and the reply is on its way.
        """
        if message_id not in self._connections and message_id not in self.lost:
            self._connections[message_id] = connection
            connection.held += 1
            self._renewed_s[message_id] = now_s
            return True
        known = self._failures.pop(message_id, None) is None
        self.lost.discard(message_id)
        self._renewed_s.pop(message_id, None)  # the newest is the last
        self._move(message_id, connection)
        self._renewed_s[message_id] = now_s
        return not known

    def remove(self, message_id: bytes) -> DispatcherConnection | None:
        """The connection that gets the answer; None if the message was lost."""
        self.lost.discard(message_id)
        self._failures.pop(message_id, None)
        connection = self._connections.pop(message_id, None)
        if connection is not None:
            del self._renewed_s[message_id]
            connection.held -= 1
        return connection

    def remove_all(self, ids: Iterable[bytes]) -> dict[DispatcherConnection, list[bytes]]:
        """The connections that get the answers, with those of the messages that were not lost."""
        found: dict[DispatcherConnection, list[bytes]] = {}
        for message_id in ids:
            connection = self.remove(message_id)
            if connection is None:
                continue
            if connection in found:
                found[connection].append(message_id)
            else:
                found[connection] = [message_id]
        return found

    def begin_failure(self, message_id: bytes, failure: object) -> None:
        """The failure is being stored. Until then the message is renewed, unless it was lost: then
        its run is over, and a next delivery is a new run."""
        if message_id in self._connections:
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
        return [each for each, connection in self._connections.items() if not connection.is_open]

    def to_renew(
        self, before_s: float, now_s: float, others: Iterable[DispatcherConnection]
    ) -> dict[DispatcherConnection, list[bytes]]:
        """The messages whose last renewal is older than `before_s`, by connection. A message whose
        connection is closed moves to one of the `others`."""
        old = []
        for message_id, renewed_s in self._renewed_s.items():
            if renewed_s > before_s:
                break
            old.append(message_id)
        other = next((each for each in others if each.is_open and each.lease_ms), None)
        found: dict[DispatcherConnection, list[bytes]] = {}
        for message_id in old:
            connection = self._connections[message_id]
            if not connection.is_open and other is not None:
                self._move(message_id, other)
                connection = other
            if connection.is_open and connection.lease_ms:
                found.setdefault(connection, []).append(message_id)
                del self._renewed_s[message_id]
                self._renewed_s[message_id] = now_s
        return found

    def _move(self, message_id: bytes, connection: DispatcherConnection) -> None:
        before = self._connections.get(message_id)
        if before is not None:
            before.held -= 1
        self._connections[message_id] = connection
        connection.held += 1
