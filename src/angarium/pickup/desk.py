"""What clients may ask, and how each question is answered.

Every frame gets the answer that JSON-RPC demands and leaves the connection open. The methods that
come in thousands (adding, removing) need no task: their answer is written when their batch is
back. A client sees its tenant's connections and no others, because every queue's name begins
with the tenant. Payloads are passed on as the bytes they came in, and are never logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from angarium.pickup import methods
from angarium.pickup.access import Access
from angarium.pickup.answers import Answer, Batch
from angarium.pickup.budget import Budget, Requests
from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.errors import (
    GatewayQuiet,
    MethodUnknown,
    QueueFull,
    RateExceeded,
    SessionsExceeded,
)
from angarium.pickup.jsonrpc import Call, Refusal, parse
from angarium.pickup.mailbox import DELIVERED, Mailbox
from angarium.pickup.model import Message, connection_of, queue_name
from angarium.pickup.push import Pushes
from angarium.pickup.sessions import Sessions
from angarium.pickup.store import PickupStore
from angarium.pickup.takes import Takes, share_of
from angarium.runtime import log
from angarium.runtime.errors import (
    AngariumError,
    OutcomeUnknown,
)
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.limits import Limits
from angarium.runtime.scripts import status_of

TRUE, FALSE = b"true", b"false"
Handler = Callable[[ClientSocket, bytes, Answer], None]
Step = Callable[[ClientSocket, bytes, Answer], Coroutine[Any, Any, None]]


class Desk:
    """Takes what clients say (`client_socket.Desk`)."""

    def __init__(
        self,
        store: PickupStore,
        mailbox: Mailbox,
        pushes: Pushes,
        access: Access,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
    ) -> None:
        self._store = store
        self._mailbox = mailbox
        self._pushes = pushes
        self._access = access
        self._spawn = spawn
        self._limits: Limits = store.runtime.settings.limits
        self._loop = asyncio.get_running_loop()
        self._tracing = store.runtime.tracing
        self._log = log.logger("angarium.pickup")
        self.sessions = Sessions(store, mailbox, spawn, share_of(self._limits))
        self._takes = Takes(mailbox, self._limits, spawn, self._taken_removed)
        self.clients: set[ClientSocket] = set()
        self.frame_bytes_max = self._limits.frame_bytes_max
        self.buffer_bytes_max = self._limits.pickup_client_buffer_bytes_max
        # Filling its buffer with what it asked for must not cut a client off.
        self.answer_bytes_max = min(
            self._limits.pickup_client_answer_bytes_max, self.buffer_bytes_max // 2
        )
        self.answers = Budget(self._limits.pickup_gateway_answer_bytes_max, self._loop.call_soon)
        self.requests = Requests(
            self._limits.pickup_client_request_bytes_max,
            self._limits.pickup_gateway_request_bytes_max,
        )
        self.quiet = False
        self.added = self.removed = self.refused = 0
        self._handlers: dict[str, Handler] = {
            "addMessage": self._add,
            "removeMessages": self._remove,
            "ping": self._ping,
            "rpc.on": self._subscribe,
            "rpc.off": self._unsubscribe,
            "takeFromQueue": partial(self._task, self._take),
            "getAvailableMessageCount": partial(self._task, partial(self._in_turn, self._count)),
            "removeAllMessages": partial(self._task, partial(self._in_turn, self._remove_all)),
            "addLiveSession": partial(self._task, partial(self._in_turn, self._open_session)),
            "removeLiveSession": partial(self._task, partial(self._in_turn, self._close_session)),
            "getLiveSession": partial(self._task, partial(self._in_turn, self._get_session)),
        }
        for alias, name in methods.ALIASES.items():
            self._handlers[alias] = self._handlers[name]

    # Sockets

    def client_connected(self, client: ClientSocket) -> bool:
        if not client.tenant and self._access.certificates:
            client.tenant = self._access.by_certificate(client.peer_certificate) or ""
        if not client.tenant or self.quiet:
            return False
        self.clients.add(client)
        return len(self.clients) <= self._limits.pickup_clients_max

    def client_gone(self, client: ClientSocket) -> None:
        self.clients.discard(client)
        self.sessions.client_gone(client)

    def client_writable(self, client: ClientSocket) -> None:
        self.sessions.wake_client(client)

    def client_said(self, client: ClientSocket, data: bytes) -> None:
        frame = parse(data, self._limits.pickup_batch_calls_max)
        batch = Batch(client, len(frame.entries)) if frame.batch else None
        for entry in frame.entries:
            if isinstance(entry, Refusal):
                self.refused += 1
                if batch is None:
                    client.send(entry.answer)
                else:
                    batch.add(entry.answer)
            else:
                self._call(client, entry, batch)
        if batch is not None and batch.steps:
            self._spawn(self._run_batch(client, batch))

    async def _run_batch(self, client: ClientSocket, batch: Batch) -> None:
        """One call after the other, and one batch of a client after the other: what they hold
        together is bounded, and nobody waits for what its own batch holds."""
        async with client.batches:
            for step in batch.steps:
                await step()

    def _call(self, client: ClientSocket, call: Call, batch: Batch | None) -> None:
        answer = Answer(client, call, batch, self.requests)
        handler = self._handlers.get(call.method)
        try:
            self._count_call(client)
            if handler is None:
                raise MethodUnknown(f"there is no method {call.method[:64]!r}")
            handler(client, call.params, answer)
        except Exception as error:
            self._fail(answer, error)

    def _count_call(self, client: ClientSocket) -> None:
        second = int(self._loop.time())
        if second != client.second:
            client.second, client.calls = second, 0
        client.calls += 1
        if client.calls > self._limits.pickup_client_calls_max:
            raise RateExceeded("pickup_client_calls_max: too many calls in this second")

    def _fail(self, answer: Answer, error: BaseException) -> None:
        self.refused += 1
        if not isinstance(error, AngariumError):
            self._log.error("call_failed", error=repr(error), exc_info=error)
        answer.failure(error)

    def _task(self, run: Step, client: ClientSocket, params: bytes, answer: Answer) -> None:
        """Methods that take several steps run as a task of their own, or in that of their batch."""
        if answer.batch is None:
            self._spawn(self._run(run, client, params, answer))
        else:
            answer.batch.steps.append(partial(self._run, run, client, params, answer))

    async def _run(self, run: Step, client: ClientSocket, params: bytes, answer: Answer) -> None:
        try:
            await run(client, params, answer)
        except Exception as error:
            self._fail(answer, error)

    async def _in_turn(
        self, run: Step, client: ClientSocket, params: bytes, answer: Answer
    ) -> None:
        async with client.steps:
            await run(client, params, answer)

    # Messages

    def _add(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        if self.quiet:
            raise GatewayQuiet("this gateway is stopping; connect again")
        add = methods.read_add(params, self._limits)
        message_id = time_ordered_id().hex
        queue = queue_name(client.tenant, add.connection)
        push = b""
        if add.push_token is not None or add.notification_uri is not None:
            push = self._pushes.note_for(add.push_token, add.notification_uri, message_id)
        dids, payload = " ".join(add.dids), bytes(add.payload)
        message = Message(message_id, 0, 0, dids, payload)
        began_ns = 0 if self._tracing is None else time.time_ns()
        at_once = not self.sessions.is_slow(queue)
        future = self._store.add(queue, message_id, dids, payload, push, at_once=at_once)
        future.add_done_callback(partial(self._added, answer, queue, message, began_ns))

    def _added(
        self,
        answer: Answer,
        queue: str,
        message: Message,
        began_ns: int,
        future: asyncio.Future[Any],
    ) -> None:
        if future.cancelled():
            answer.failure(OutcomeUnknown("the gateway stopped"))
            return
        error = future.exception()
        if error is not None:
            if isinstance(error, OutcomeUnknown):
                self._spawn(self._confirm(answer, queue, message.id, error))
            else:
                self._fail(answer, error)
            return
        status = future.result()
        if status == b"queue_full":
            self._fail(answer, QueueFull("the connection's queue is full"))
            return
        self.added += 1
        answer.result(b'{"messageId":"%b"}' % message.id.encode())
        if self._tracing is not None:
            values = {"angarium.id": message.id, "angarium.connection_id": connection_of(queue)}
            self._tracing.started(message.id, "pickup add", began_ns, values)
        if isinstance(status, list):
            self.sessions.sent(queue, message, *status[1:])
        elif status == b"here":
            self.sessions.wake(queue)

    async def _confirm(
        self, answer: Answer, queue: str, message_id: str, error: BaseException
    ) -> None:
        """The answer of Redis was lost: the message is there, or we say that we do not know."""
        try:
            found = await self._store.found(queue, message_id)
        except AngariumError:
            found = False
        if not found:
            self._fail(answer, error)
            return
        self.added += 1
        answer.result(b'{"messageId":"%b"}' % message_id.encode())
        self.sessions.recover(queue)

    def _remove(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        remove = methods.read_remove(params, self._limits)
        queue = queue_name(client.tenant, remove.connection)
        # Ids of ours have no spaces and are short; what is not like that is nobody's message.
        ids = [each for each in remove.message_ids if each.isalnum() and len(each) <= 64]
        if not ids:
            answer.result(TRUE)
            return
        future = self._store.remove(queue, DELIVERED, ids)
        future.add_done_callback(partial(self._removed, answer, queue, ids))

    def _removed(
        self, answer: Answer, queue: str, ids: Sequence[str], future: asyncio.Future[Any]
    ) -> None:
        if future.cancelled():
            answer.failure(OutcomeUnknown("the gateway stopped"))
            return
        error = future.exception()
        if error is not None:
            self._fail(answer, error)
            return
        reply = future.result()
        if len(reply) == 3:
            self._done_removing(answer, queue, int(reply[1]), ids)
        else:
            self._spawn(self._finish_removing(answer, queue, ids, reply))

    async def _finish_removing(
        self, answer: Answer, queue: str, ids: Sequence[str], reply: Any
    ) -> None:
        try:
            removed = await self._mailbox.finish_remove(queue, ids, DELIVERED, reply)
        except Exception as error:
            self._fail(answer, error)
            return
        self._done_removing(answer, queue, removed, ids)

    def _done_removing(
        self, answer: Answer, queue: str, removed: int, ids: Sequence[str] = ()
    ) -> None:
        self.removed += removed
        # Of fewer than were named, nobody here knows which; the journal does.
        if self._tracing is not None and removed == len(ids):
            self._tracing.follow(ids, "pickup delivered", kind="consumer")
        self.sessions.acknowledged(queue, ids)
        answer.result(TRUE)

    async def _take(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        ids = await self._takes.run(client, params, answer)
        if self._tracing is not None:
            self._tracing.follow(ids, "pickup send", kind="producer")

    def _taken_removed(self, ids: list[str], removed: int) -> None:
        self.removed += removed
        if self._tracing is not None and removed == len(ids):
            self._tracing.follow(ids, "pickup delivered", kind="consumer")

    async def _count(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        asked = methods.read_of_recipient(methods.Count, params, self._limits)
        queue = queue_name(client.tenant, asked.connection)
        answer.result(b"%d" % await self._mailbox.count(queue, asked.did))

    async def _remove_all(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        asked = methods.read_of_recipient(methods.RemoveAll, params, self._limits)
        queue = queue_name(client.tenant, asked.connection)
        removed = await self._mailbox.remove_all(queue, asked.did)
        self._done_removing(answer, queue, removed)

    # Sessions

    async def _open_session(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        if self.quiet:
            raise GatewayQuiet("this gateway is stopping; connect again")
        asked = methods.read_session(params, self._limits, needs_id=True)
        most = self._limits.pickup_client_sessions_max
        if len(client.sessions) + client.opening >= most:
            raise SessionsExceeded(f"pickup_client_sessions_max: {most} sessions are open")
        queue = queue_name(client.tenant, asked.connection)
        client.opening += 1
        try:
            session = await self.sessions.open(client, queue, asked.session_id or client.id)
        finally:
            client.opening -= 1
        answer.result(TRUE)
        if session is not None:
            self.sessions.wake(queue)

    async def _close_session(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        asked = methods.read_session(params, self._limits, needs_id=False)
        queue = queue_name(client.tenant, asked.connection)
        closed = await self.sessions.close(client, queue, asked.session_id or "")
        answer.result(TRUE if closed else FALSE)

    async def _get_session(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        asked = methods.read(methods.Connection, params, self._limits)
        reply = await self._store.read_session(queue_name(client.tenant, asked.connection))
        answer.result(TRUE if status_of(reply) == "live" else FALSE)

    # The rest

    def _ping(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        answer.result(b'"pong"')

    def _subscribe(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        found = {}
        for name in methods.read_events(params):
            known = name in methods.EVENTS
            found[name] = "ok" if known else "provided event invalid"
            if known:
                client.events.add(name)
        answer.result(msgspec.json.encode(found))

    def _unsubscribe(self, client: ClientSocket, params: bytes, answer: Answer) -> None:
        found = {}
        for name in methods.read_events(params):
            found[name] = "ok" if name in client.events else "not subscribed"
            client.events.discard(name)
        answer.result(msgspec.json.encode(found))
