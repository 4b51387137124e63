"""Handles the JSON-RPC methods of the gateway.

Every frame gets the answer that JSON-RPC demands, and the connection stays open. The frequent
methods `addMessage` and `removeMessages` need no task: a callback writes the answer when Redis has
replied to their batch. A client reaches only the connections of its tenant, because the name of
every queue begins with the tenant. Payloads are never changed and never logged.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec
from picows import WSCloseCode

from angarium.pickup import methods
from angarium.pickup.access import GatewayAccess
from angarium.pickup.answers import RpcAnswer, RpcBatch
from angarium.pickup.budget import ByteBudget, UnansweredCalls
from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.compat import METHOD_ALIASES
from angarium.pickup.errors import (
    GatewayQuiet,
    MethodUnknown,
    QueueFull,
    RateExceeded,
    SessionsExceeded,
)
from angarium.pickup.jsonrpc import Call, Refusal, parse
from angarium.pickup.limits import PickupLimits
from angarium.pickup.live_sessions import LiveSessions
from angarium.pickup.message_transitions import RemovedMessages, SentAtOnce
from angarium.pickup.model import StoredMessage, connection_of, queue_name
from angarium.pickup.push import PushWorker
from angarium.pickup.queues import DELIVERED, PickupQueues
from angarium.pickup.read_turns import ReadTurns
from angarium.pickup.session_store import SessionStatus
from angarium.pickup.store import PickupStore
from angarium.pickup.take_handler import TakeHandler, fetch_bytes
from angarium.redis.options import Durability
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, OutcomeUnknown
from angarium.runtime.ids import time_ordered_id

TRUE, FALSE = b"true", b"false"
# What the sender learns of a notification URI without a token.
IGNORED = b',"ignored":["notificationUri: a push needs a token"]'
Handler = Callable[[ClientSocket, bytes, RpcAnswer], None]
Step = Callable[[ClientSocket, bytes, RpcAnswer], Coroutine[Any, Any, None]]


class RpcHandler:
    def __init__(
        self,
        store: PickupStore,
        queues: PickupQueues,
        pushes: PushWorker,
        access: GatewayAccess,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
    ) -> None:
        self._store = store
        self._queues = queues
        self._pushes = pushes
        self._access = access
        self._spawn = spawn
        self._limits: PickupLimits = store.runtime.settings.limits_of(PickupLimits)
        self._loop = asyncio.get_running_loop()
        self._tracing = store.runtime.tracing
        self._log = log.logger("angarium.pickup")
        self.sessions = LiveSessions(store, queues, spawn, fetch_bytes(self._limits))
        self._takes = TakeHandler(queues, store.dids, self._limits, spawn, self._count_removed)
        self.clients: set[ClientSocket] = set()
        self._tenant_clients: Counter[str] = Counter()
        self.frame_bytes_max = self._limits.frame_bytes_max
        self.buffer_bytes_max = self._limits.pickup_client_buffer_bytes_max
        # Answers alone never fill the buffer of a client, because a full buffer disconnects it.
        self.client_answer_bytes_max = min(
            self._limits.pickup_client_answer_bytes_max, self.buffer_bytes_max // 2
        )
        self.answer_budget = ByteBudget(
            self._limits.pickup_gateway_answer_bytes_max, self._loop.call_soon
        )
        self.unanswered = UnansweredCalls(
            self._limits.pickup_client_request_bytes_max,
            self._limits.pickup_gateway_request_bytes_max,
        )
        self._turns = ReadTurns(self._loop.call_soon)
        # Replies of one connection arrive in order. With durability beyond `memory` the calls use
        # several connections, and only a fetch knows the order.
        self._in_order = store.runtime.options.redis.durability is Durability.MEMORY
        self.quiet = False
        self.added = self.removed = self.refused = 0
        self._handlers: dict[str, Handler] = {
            "addMessage": self._add,
            "removeMessages": self._remove,
            "ping": self._ping,
            "rpc.on": self._subscribe,
            "rpc.off": self._unsubscribe,
            "takeFromQueue": partial(self._task, self._take),
            "getAvailableMessageCount": partial(self._task, partial(self._limited, self._count)),
            "removeAllMessages": partial(self._task, partial(self._limited, self._remove_all)),
            "addLiveSession": partial(self._task, partial(self._limited, self._open_session)),
            "removeLiveSession": partial(self._task, partial(self._limited, self._close_session)),
            "getLiveSession": partial(self._task, partial(self._limited, self._get_session)),
        }
        for alias, name in METHOD_ALIASES.items():
            self._handlers[alias] = self._handlers[name]

    # Sockets

    def client_connected(self, client: ClientSocket) -> bool:
        if not client.tenant and self._access.certificates:
            client.tenant = self._access.by_certificate(client.peer_certificate) or ""
        if not client.tenant or self.quiet:
            return False
        self.clients.add(client)
        self._tenant_clients[client.tenant] += 1
        of_tenant = self._tenant_clients[client.tenant]
        return (
            len(self.clients) <= self._limits.pickup_clients_max
            and of_tenant <= self._limits.pickup_tenant_clients_max
        )

    def client_disconnected(self, client: ClientSocket) -> None:
        if client in self.clients:
            self.clients.discard(client)
            self._tenant_clients[client.tenant] -= 1
            if not self._tenant_clients[client.tenant]:
                del self._tenant_clients[client.tenant]
        self.sessions.client_disconnected(client)

    def close_idle(self, first_call_s: float, idle_s: float) -> None:
        """Close clients without a first call, and those without a session that stopped calling."""
        now_s = self._loop.time()
        for client in list(self.clients):
            if not client.second:
                idle = now_s - client.connected_s > first_call_s
            else:
                idle = not client.sessions and now_s - client.second > idle_s
            if idle and not client.unanswered_bytes:
                client.close(WSCloseCode.POLICY_VIOLATION)

    def client_writable(self, client: ClientSocket) -> None:
        self.sessions.wake_client(client)

    def message_received(self, client: ClientSocket, data: bytes) -> None:
        frame = parse(data, self._limits.pickup_batch_calls_max)
        self._turns.count(client, len(frame.entries), len(data))
        batch = RpcBatch(client, len(frame.entries)) if frame.batch else None
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

    async def _run_batch(self, client: ClientSocket, batch: RpcBatch) -> None:
        """The calls of a batch run one after the other, and so do the batches of a client. That
        bounds the bytes of their answers, and no batch waits for another."""
        async with client.batch_lock:
            for step in batch.steps:
                await step()

    def _call(self, client: ClientSocket, call: Call, batch: RpcBatch | None) -> None:
        answer = RpcAnswer(client, call, batch, self.unanswered)
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

    def _fail(self, answer: RpcAnswer, error: BaseException) -> None:
        self.refused += 1
        if not isinstance(error, AngariumError):
            self._log.error("call_failed", error=repr(error), exc_info=error)
        answer.failure(error)

    def _task(self, run: Step, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        """Run a method of several steps in a task of its own, or in the task of its batch."""
        if answer.batch is None:
            self._spawn(self._run(run, client, params, answer))
        else:
            answer.batch.steps.append(partial(self._run, run, client, params, answer))

    async def _run(self, run: Step, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        try:
            await run(client, params, answer)
        except Exception as error:
            self._fail(answer, error)

    async def _limited(
        self, run: Step, client: ClientSocket, params: bytes, answer: RpcAnswer
    ) -> None:
        async with client.concurrent_calls:
            await run(client, params, answer)

    # Messages

    def _add(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        if self.quiet:
            raise GatewayQuiet("this gateway is stopping; connect again")
        add = methods.read_add(params, self._limits)
        message_id = time_ordered_id().hex
        queue = queue_name(client.tenant, add.connection)
        push = b""
        if add.push_token is not None or add.notification_uri is not None:
            push = self._pushes.encoded_push(add.push_token, add.notification_uri)
        ignored = add.notification_uri is not None and add.push_token is None
        dids, payload = " ".join(add.dids), bytes(add.payload)
        message = StoredMessage(message_id, 0, 0, dids, payload)
        began_ns = 0 if self._tracing is None else time.time_ns()
        at_once = self._in_order and not self.sessions.is_slow(queue)
        future = self._store.add(queue, message_id, dids, payload, push, at_once=at_once)
        future.add_done_callback(partial(self._added, answer, queue, message, began_ns, ignored))

    def _added(
        self,
        answer: RpcAnswer,
        queue: str,
        message: StoredMessage,
        began_ns: int,
        ignored: bool,
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
        reply = future.result()
        if reply == "queue_full":
            self._fail(answer, QueueFull("the connection's queue is full"))
            return
        self.added += 1
        note = IGNORED if ignored else b""
        answer.result(b'{"messageId":"%b"%b}' % (message.id.encode(), note))
        if self._tracing is not None:
            values = {"angarium.id": message.id, "angarium.connection_id": connection_of(queue)}
            self._tracing.started(message.id, "pickup add", began_ns, values)
        if isinstance(reply, SentAtOnce):
            self.sessions.message_sent(queue, message, reply)
        elif reply == "here":
            self.sessions.wake(queue)

    async def _confirm(
        self, answer: RpcAnswer, queue: str, message_id: str, error: BaseException
    ) -> None:
        """The reply of Redis was lost. If Redis has the message, the call succeeded."""
        try:
            exists = await self._store.exists(queue, message_id)
        except AngariumError:
            exists = False
        if not exists:
            self._fail(answer, error)
            return
        self.added += 1
        answer.result(b'{"messageId":"%b"}' % message_id.encode())
        self.sessions.resend(queue)

    def _remove(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        remove = methods.read_remove(params, self._limits)
        queue = queue_name(client.tenant, remove.connection)
        # All ids of messages are short and alphanumeric; any other id matches nothing.
        ids = [each for each in remove.message_ids or () if each.isalnum() and len(each) <= 64]
        if not ids:
            answer.result(TRUE)
            return
        future = self._store.remove(queue, DELIVERED, ids)
        future.add_done_callback(partial(self._removed, answer, queue, ids, remove.by_did))

    def _removed(
        self,
        answer: RpcAnswer,
        queue: str,
        ids: Sequence[str],
        by_did: bool,
        future: asyncio.Future[Any],
    ) -> None:
        if future.cancelled():
            answer.failure(OutcomeUnknown("the gateway stopped"))
            return
        error = future.exception()
        if error is not None:
            self._fail(answer, error)
            return
        reply = future.result()
        whole = isinstance(reply, RemovedMessages) and not reply.missing
        if whole and (reply.removed == len(ids) or not by_did):
            self._answer_removal(answer, queue, reply.removed, ids)
        else:
            self._spawn(self._finish_removal(answer, queue, ids, by_did, reply))

    async def _finish_removal(
        self, answer: RpcAnswer, queue: str, ids: Sequence[str], by_did: bool, reply: Any
    ) -> None:
        try:
            removed = await self._queues.finish_remove(queue, ids, DELIVERED, reply)
            if by_did:
                for other in await self._store.dids.queues_of(queue):
                    removed += await self._queues.remove(other, ids, DELIVERED)
                    self.sessions.acknowledged(other, ids)
        except Exception as error:
            self._fail(answer, error)
            return
        self._answer_removal(answer, queue, removed, ids)

    def _answer_removal(
        self, answer: RpcAnswer, queue: str, removed: int, ids: Sequence[str] = ()
    ) -> None:
        self._count_removed(ids, removed)
        self.sessions.acknowledged(queue, ids)
        answer.result(TRUE)

    def _count_removed(self, ids: Sequence[str], removed: int) -> None:
        self.removed += removed
        # If fewer were removed, only the journal knows which.
        if self._tracing is not None and removed == len(ids):
            self._tracing.follow(ids, "pickup delivered", kind="consumer")

    async def _take(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        ids = await self._takes.run(client, params, answer)
        if self._tracing is not None:
            self._tracing.follow(ids, "pickup send", kind="producer")

    async def _count(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        read = methods.read_recipient(params, self._limits, needs_did=False)
        queue = queue_name(client.tenant, read.connection)
        counts = [await self._queues.count(each, read.did) for each in await self._all(queue, read)]
        answer.result(b"%d" % sum(counts))

    async def _remove_all(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        read = methods.read_recipient(params, self._limits, needs_did=True)
        queue = queue_name(client.tenant, read.connection)
        removed = 0
        for each in await self._all(queue, read):
            removed += await self._queues.remove_all(each, read.did)
        self._answer_removal(answer, queue, removed)

    async def _all(self, queue: str, read: methods.ConnectionParams) -> list[str]:
        """The queue, and those of other connections if the caller named a recipient only."""
        return [queue, *(await self._store.dids.queues_of(queue) if read.by_did else ())]

    # Sessions

    async def _open_session(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        if self.quiet:
            raise GatewayQuiet("this gateway is stopping; connect again")
        read = methods.read_session(params, self._limits, needs_id=True)
        sessions_max = self._limits.pickup_client_sessions_max
        if len(client.sessions) + client.sessions_opening >= sessions_max:
            raise SessionsExceeded(f"pickup_client_sessions_max: {sessions_max} sessions are open")
        queue = queue_name(client.tenant, read.connection)
        client.sessions_opening += 1
        try:
            session = await self.sessions.open(
                client, queue, read.session_id or client.id, by_did=read.by_did
            )
        finally:
            client.sessions_opening -= 1
        answer.result(TRUE)
        if session is not None:
            self.sessions.wake(queue)

    async def _close_session(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        read = methods.read_session(params, self._limits, needs_id=False)
        queue = queue_name(client.tenant, read.connection)
        closed = await self.sessions.close(client, queue, read.session_id or "")
        answer.result(TRUE if closed else FALSE)

    async def _get_session(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        read = methods.read(methods.ConnectionParams, params, self._limits)
        reply = await self._store.sessions.read(queue_name(client.tenant, read.connection))
        answer.result(TRUE if isinstance(reply, SessionStatus) else FALSE)

    # Ping and events

    def _ping(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        answer.result(b'"pong"')

    def _subscribe(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        found = {}
        for name in methods.read_events(params):
            known = name in methods.EVENTS
            found[name] = "ok" if known else "provided event invalid"
            if known:
                client.events.add(name)
        answer.result(msgspec.json.encode(found))

    def _unsubscribe(self, client: ClientSocket, params: bytes, answer: RpcAnswer) -> None:
        found = {}
        for name in methods.read_events(params):
            found[name] = "ok" if name in client.events else "not subscribed"
            client.events.discard(name)
        answer.result(msgspec.json.encode(found))
