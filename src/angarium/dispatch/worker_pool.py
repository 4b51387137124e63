"""The connections of a dispatcher to all workers: dialled, kept open, and sent to round robin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from angarium.dispatch import security
from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.queues import UNNAMED
from angarium.dispatch.worker_connection import (
    WorkerConnection,
    WorkerConnectionEvents,
    WorkerConnectionOptions,
)
from angarium.redis.backoff import Backoff
from angarium.runtime import log
from angarium.runtime.clock import Clock
from angarium.runtime.log import RepeatedWarnings

CONNECT_TIMEOUT_S = 5.0


class WorkerPool:
    def __init__(
        self,
        options: WorkerConnectionOptions,
        events: WorkerConnectionEvents,
        metrics: DispatcherMetrics,
        clock: Clock,
    ) -> None:
        self._options = options
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self.warnings = RepeatedWarnings(log.logger("angarium.dispatch"), clock)
        self._connections: list[WorkerConnection] = []
        self._turn = 0
        # The number of the delivery of each message that will be sent again.
        self.deliveries: dict[bytes, int] = {}
        self._listed: frozenset[str] = frozenset()
        self._dial_tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def free_slots(self) -> int:
        """How many messages of the unnamed queue can be sent now."""
        return self.slots_of(UNNAMED)

    def slots_of(self, queue: str) -> int:
        return sum([each.free_slots for each in self._connections if each.queue == queue])

    @property
    def named_queues(self) -> set[str]:
        """The named queues that workers are connected for."""
        return {each.queue for each in self._connections if each.queue}

    def on_free_slots(self) -> None:
        self._events.on_free_slots()

    @property
    def connections(self) -> Sequence[WorkerConnection]:
        return self._connections

    def distribute(
        self,
        messages: Sequence[DispatchedMessage],
        avoid: Sequence[WorkerConnection | None] = (),
        queue: str = UNNAMED,
    ) -> int:
        """Send messages round robin while workers of the queue have free slots; the number sent.

        `avoid` has for each message the connection that held it last. Another worker gets the
        message, unless there is no other.
        """
        connections = [
            each for each in self._connections if each.free_slots > 0 and each.queue == queue
        ]
        if not connections:
            return 0
        share = -(-len(messages) // len(connections))
        if not avoid and min(each.free_slots for each in connections) >= share:
            turn = self._turn % len(connections)
            for i, connection in enumerate((*connections[turn:], *connections[:turn])):
                if part := messages[i :: len(connections)]:
                    self._send(connection, part)
            self._turn = turn + len(messages)
            return len(messages)
        return self._distribute_one_by_one(messages, avoid, connections)

    def _distribute_one_by_one(
        self,
        messages: Sequence[DispatchedMessage],
        avoid: Sequence[WorkerConnection | None],
        connections: list[WorkerConnection],
    ) -> int:
        free = {connection: connection.free_slots for connection in connections}
        parts: dict[WorkerConnection, list[DispatchedMessage]] = {each: [] for each in connections}
        sent = 0
        for i, message in enumerate(messages):
            last = avoid[i] if avoid else None
            connection = self._next(connections, free, last) or self._next(connections, free, None)
            if connection is None:
                break
            parts[connection].append(message)
            free[connection] -= 1
            sent += 1
        for connection, part in parts.items():
            if part:
                self._send(connection, part)
        return sent

    def _send(self, connection: WorkerConnection, messages: Sequence[DispatchedMessage]) -> None:
        connection.send(messages, self.deliveries)
        if self.deliveries:
            self.forget_deliveries([message_id for message_id, _ in messages])

    def reserve(self, queue: str) -> WorkerConnection | None:
        """Take the worker of the queue that has the fewest messages out of the turn; None if there
        is none, or another one is reserved: one at a time, so that the others go on."""
        usable = [each for each in self._connections if each.usable and each.queue == queue]
        if not usable or any(each.reserved for each in self._connections):
            return None
        chosen = min(usable, key=lambda each: len(each.unacknowledged))
        chosen.reserved = True
        return chosen

    def forget_deliveries(self, ids: Iterable[bytes]) -> None:
        for message_id in ids:
            self.deliveries.pop(message_id, None)

    def _next(
        self,
        connections: list[WorkerConnection],
        free: dict[WorkerConnection, int],
        avoid: WorkerConnection | None,
    ) -> WorkerConnection | None:
        for _ in connections:
            connection = connections[self._turn % len(connections)]
            self._turn += 1
            if connection is not avoid and free[connection] > 0:
                return connection
        return None

    def forget_older_than(self, age_s: float) -> int:
        before_s = asyncio.get_running_loop().time() - age_s
        return sum(each.forget_sent_before(before_s) for each in self._connections)

    def connection_with(self, message_id: bytes) -> WorkerConnection | None:
        return next((each for each in self._connections if message_id in each.unacknowledged), None)

    def settle(self, ids: Sequence[bytes]) -> list[bytes]:
        """Free the slots of messages that were acknowledged at an ACK port.

        Returns the ids that no connection of this dispatcher holds.
        """
        others = []
        for message_id in ids:
            connection = self.connection_with(message_id)
            if connection is not None:
                connection.settle([message_id])
            else:
                others.append(message_id)
        return others

    def connect_to(self, addresses: Iterable[str], group: asyncio.TaskGroup) -> None:
        """Keep connections to exactly these addresses.

        A worker that stops leaves the list before it has finished. So the connection of a worker
        that is no longer listed closes when none of its messages is unacknowledged.
        """
        self._listed = frozenset(addresses)
        for address in sorted(self._listed):
            task = self._dial_tasks.get(address)
            if task is None or task.done():
                self._dial_tasks[address] = group.create_task(self._keep_connected(address))
        for connection in self._connections:
            self._update_delisted(connection)

    def _update_delisted(self, connection: WorkerConnection) -> None:
        was_delisted = connection.delisted
        connection.delisted = connection.address not in self._listed
        if connection.delisted and not connection.unacknowledged:
            connection.close()
        elif was_delisted and not connection.delisted:
            self._events.on_free_slots()

    async def _keep_connected(self, address: str) -> None:
        backoff = Backoff(base_s=0.05, ceiling_s=2.0)
        while address in self._listed:
            connection = await self._dial(address)
            if connection is not None:
                self._connections.append(connection)
                self._update_delisted(connection)
                began_s = self._clock.monotonic()
                try:
                    await asyncio.shield(connection.closed)
                finally:
                    self._connections.remove(connection)
                    connection.close()
                if self._clock.monotonic() - began_s > 1.0:
                    backoff.reset()
            await self._clock.sleep(backoff.next_delay_s())
        del self._dial_tasks[address]

    async def _dial(self, address: str) -> WorkerConnection | None:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: WorkerConnection(
                        address, self._options, self._events, self._metrics, self.warnings
                    ),
                    host.strip("[]"),
                    int(port),
                    ssl=self._options.tls,
                    ssl_handshake_timeout=security.tls_deadline_s(self._options.tls),
                )
        except (OSError, TimeoutError, ValueError, OverflowError):
            return None
        return connection

    def close(self) -> None:
        self.warnings.flush(at_end=True)
        for task in list(self._dial_tasks.values()):
            task.cancel()
        for connection in self._connections:
            connection.close()
