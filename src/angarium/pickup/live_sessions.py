"""The live sessions of this gateway, and the fetches of their messages.

A session has one fetch at a time, so its messages leave in order of arrival. A hint over Pub/Sub
says that a queue may have messages; a periodic check of all sessions finds what no hint reported.
When the lease of this gateway had run out, the gateway restores its sessions, except those that
another gateway has taken over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.delivery_notifier import DeliveryNotifier
from angarium.pickup.did_sessions import DidSessions
from angarium.pickup.live_session import LiveSession
from angarium.pickup.message_transitions import ArchivedFirst, PulledMessages, SentAtOnce
from angarium.pickup.model import StoredMessage, messages_of
from angarium.pickup.queues import PickupQueues
from angarium.pickup.session_store import SessionKept, SessionOpened, SessionStatus
from angarium.pickup.store import PickupStore
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, NotDurable, OutcomeUnknown, RedisUnavailable

# After a fault: short for users, long enough not to overload a server that has just started.
RETRY_S = 0.25
SESSIONS_PER_CHECK = 500
# A process that was paused reads within this time that the client of an old request has left.
DISCONNECT_S = 0.05


class LiveSessions:
    """`spawn` runs a coroutine that catches its own errors."""

    def __init__(
        self,
        store: PickupStore,
        queues: PickupQueues,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
        fetch_bytes: int,
    ) -> None:
        """Each fetch reserves `fetch_bytes` of its client's budget."""
        self._store = store
        self._queues = queues
        self._spawn = spawn
        self._fetch_bytes = fetch_bytes
        self._by_queue: dict[str, LiveSession] = {}
        self._opening: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self._log = log.logger("angarium.pickup")
        self._notifier = DeliveryNotifier(store.runtime.tracing)
        self.by_did = DidSessions(store, queues, self._notifier, spawn)

    def __len__(self) -> int:
        return len(self._by_queue)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._by_queue.values()))

    def get(self, queue: str) -> LiveSession | None:
        return self._by_queue.get(queue)

    @property
    def delivered(self) -> int:
        return self._notifier.delivered

    # Opening and closing

    async def open(
        self, client: ClientSocket, queue: str, session_id: str, *, by_did: bool = False
    ) -> LiveSession | None:
        """Make it the queue's live session; None if the client disconnected meanwhile. `by_did`:
        it also gets messages of other queues that name the recipient."""
        self._opening[queue] += 1
        try:
            opened = await self._open(client, queue, session_id)
        finally:
            self._opening[queue] -= 1
            if not self._opening[queue]:
                del self._opening[queue]
        if opened is None:
            return None
        if not client.open:
            await self._close_in_redis(queue, socket=client.id)
            return None
        before = self._by_queue.get(queue)
        if before is not None and before.client is client and before.term == opened.term:
            return before
        self.forget(queue)
        session = LiveSession(queue, session_id, client, opened.term, by_did)
        # The reply to the first opening was lost, and possibly messages sent since.
        session.resend = isinstance(opened, SessionKept)
        self._by_queue[queue] = session
        client.sessions[queue] = session
        if by_did:
            self.by_did.opened(session)
        return session

    async def _open(
        self, client: ClientSocket, queue: str, session_id: str
    ) -> SessionOpened | None:
        """While Redis was unavailable or this process was stopped, the client may
        have opened a session at another gateway. A session that began after the request is replaced
        only if the client is still connected here."""
        sessions, partition = self._store.sessions, self._store.partition_of(queue)
        asked_ms: int | str = sessions.asked_ms(partition)
        while True:
            reply = await sessions.open(queue, session_id, client.id, asked_ms=asked_ms)
            if isinstance(reply, SessionOpened):
                return reply
            if reply == "no_lease":
                await sessions.renew_gateway(partition)
            else:  # late
                await asyncio.sleep(DISCONNECT_S)
                if not client.open:
                    return None
                asked_ms = ""

    async def close(self, client: ClientSocket, queue: str, session_id: str) -> bool:
        """Close the session with this id, or the client's own session if the id is empty."""
        if session_id:
            found = await self._store.sessions.read(queue)
            live = isinstance(found, SessionStatus)
            gateway = found.gateway if live else self._store.gateway
            closing = self._store.sessions.close(queue, gateway=gateway, session=session_id)
        else:
            closing = self._close_in_redis(queue, socket=client.id)
        closed: bool = await closing == "closed"
        session = self._by_queue.get(queue)
        if closed and session is not None and session.id == (session_id or session.id):
            self.forget(queue)
        return closed

    def client_disconnected(self, client: ClientSocket) -> None:
        """All its sessions end; its unacknowledged messages wait for the next session."""
        queues = list(client.sessions)
        for queue in queues:
            self.forget(queue)
        if queues:
            self._spawn(self._close_queues(queues, client.id))

    async def close_all(self) -> None:
        sessions = list(self)
        for each in sessions:
            self.forget(each.queue)
        closing = [self._close_in_redis(each.queue, socket=each.client.id) for each in sessions]
        await asyncio.gather(*closing, return_exceptions=True)

    async def _close_queues(self, queues: list[str], socket: str) -> None:
        remaining = queues
        while remaining:
            closing = [self._close_in_redis(queue, socket=socket) for queue in remaining]
            results = await asyncio.gather(*closing, return_exceptions=True)
            remaining = [
                queue
                for queue, result in zip(remaining, results, strict=True)
                if isinstance(result, RedisUnavailable | OutcomeUnknown | NotDurable)
            ]
            if remaining:
                await asyncio.sleep(RETRY_S)

    def _close_in_redis(
        self, queue: str, *, socket: str = "", term: str = ""
    ) -> asyncio.Future[Any]:
        gateway = self._store.gateway
        return self._store.sessions.close(queue, gateway=gateway, socket=socket, term=term)

    def forget(self, queue: str, term: str | None = None) -> None:
        """Forget the session in this process, if it has this term."""
        session = self._by_queue.get(queue)
        if session is not None and term in (None, session.term):
            del self._by_queue[queue]
            session.client.sessions.pop(queue, None)
            if session.by_did:
                self.by_did.ended(session)

    def ended_elsewhere(self, queue: str, term: str) -> None:
        """Another session replaced it, or another gateway closed it. Closing it here too removes it
        from this gateway's list in Redis."""
        self.forget(queue, term)
        self._spawn(self._close_term(queue, term))

    async def _close_term(self, queue: str, term: str) -> None:
        try:
            await self._close_in_redis(queue, term=term)
        except AngariumError as error:
            self._log.warning("session_not_closed", queue=queue, error=repr(error))

    def _handle_unknown(self, queue: str) -> None:
        """Redis has a session of this gateway that this process does not know: it has just ended,
        or the reply to its opening was lost."""
        if queue not in self._opening:
            self._spawn(self._close_unknown(queue))

    async def _close_unknown(self, queue: str) -> None:
        reply = await self._store.sessions.read(queue)
        if not isinstance(reply, SessionStatus) or reply.gateway != self._store.gateway:
            return
        if queue not in self._opening and queue not in self._by_queue:
            self._log.warning("orphan_closed", queue=queue)
            await self._close_term(queue, reply.term)

    # Messages

    def wake(self, queue: str) -> None:
        """The queue may have messages: fetch them."""
        session = self._by_queue.get(queue)
        if session is None:
            self._handle_unknown(queue)
        elif session.fetching or session.client.slow:
            session.more_waiting = True
        else:
            self._request_fetch(session)

    def message_sent(self, queue: str, message: StoredMessage, sent: SentAtOnce) -> None:
        """Redis gave an added message to the session at once, because no older one was pending."""
        session = self._by_queue.get(queue)
        if session is None:
            self._handle_unknown(queue)  # the next session gets the message
            return
        if session.term != sent.term:
            self.resend(queue)
            return
        message = message._replace(sequence=sent.sequence, received_ms=sent.received_ms)
        if session.fetching:
            # The fetch may return older or newer messages, so they are sorted together.
            session.sent_during_fetch.append(message)
        else:
            self._notifier.deliver(session, [message])

    def resend(self, queue: str) -> None:
        """Send all messages of the session again: it may not have received some of them."""
        session = self._by_queue.get(queue)
        if session is not None:
            session.resend = True
            self.wake(queue)

    def acknowledged(self, queue: str, ids: Sequence[str] = ()) -> None:
        """Messages were removed: do not notify of them, and fetch if the window was full."""
        self.by_did.acknowledged(queue, ids)
        session = self._by_queue.get(queue)
        if session is None:
            return
        if session.fetching:
            session.removed_during_fetch.update(ids)
        elif session.window_full:
            self.wake(queue)
        if session.to_notify:
            session.to_notify = [each for each in session.to_notify if each.id not in ids]

    def wake_client(self, client: ClientSocket) -> None:
        """The client is no longer slow."""
        for session in list(client.sessions.values()):
            if session.more_waiting and not session.fetching:
                self._request_fetch(session)
        self.by_did.client_writable(client)

    def is_slow(self, queue: str) -> bool:
        """A slow client has much to read, so new messages should stay in Redis."""
        session = self._by_queue.get(queue)
        return session is not None and session.client.slow

    # Fetching

    def _request_fetch(self, session: LiveSession) -> None:
        """Fetch when the client's budget allows: it bounds the fetches of all its sessions."""
        session.fetching, session.more_waiting, session.window_full = True, False, False
        session.client.budget.request(self._fetch_bytes, partial(self._fetch, session))

    def _fetch(self, session: LiveSession) -> None:
        client = session.client
        if client.slow or self._by_queue.get(session.queue) is not session:
            # `wake_client` continues if the session still exists then.
            session.fetching, session.more_waiting = False, True
            client.budget.release(self._fetch_bytes)
            return
        resend = session.fetch_resends = session.resend
        session.resend, session.fetch_term = False, session.term
        try:
            future = self._store.pull(
                session.queue, session.term, resend=resend, seen=session.seen_moves
            )
        except AngariumError as error:
            self._fetch_failed(session, error)
            return
        future.add_done_callback(partial(self.fetch_done, session))

    def fetch_done(self, session: LiveSession, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            session.fetching = False
            session.client.budget.release(self._fetch_bytes)
            return
        error = future.exception()
        if error is not None:
            self._fetch_failed(session, error)
            return
        reply = future.result()
        if isinstance(reply, PulledMessages):
            self._deliver(session, messages_of(reply.messages))
            self._end_fetch(session, more=reply.more)
        elif isinstance(reply, ArchivedFirst):
            session.seen_moves = reply.moves
            self._spawn(self._fetch_archived(session, reply.cleared))
        elif reply == "busy":
            self._fetch(session)
        elif reply == "lost":
            self._term_lost(session)
        elif reply == "not_counted":
            self._loop.call_later(RETRY_S, self._end_fetch, session, True)
        else:
            # The window is full, or messages of an earlier session are in their grace period. An
            # acknowledgement, a hint or the periodic check continues.
            session.window_full = True
            self._end_fetch(session, more=False)

    def _term_lost(self, session: LiveSession) -> None:
        if session.term == session.fetch_term:
            # Another session replaced it, or it was closed while our lease had run out. Redis
            # decides: a client that is still connected must keep its session in the second case.
            session.sent_during_fetch.clear()
            self._spawn(self.restore_after_fetch(session))
        else:
            self._end_fetch(session, more=True)  # it was restored during the fetch

    async def restore_after_fetch(self, session: LiveSession) -> None:
        try:
            await self.restore(session)
        except AngariumError as error:
            # The next renewal of the lease or the periodic check tries again.
            self._log.warning("session_not_restored", queue=session.queue, error=repr(error))
        finally:
            self._end_fetch(session, more=False)

    async def _fetch_archived(self, session: LiveSession, cleared: str) -> None:
        try:
            claimed = await self._queues.pull_archived(session.queue, session.term, cleared)
        except Exception as error:
            session.seen_moves = ""
            self._fetch_failed(session, error)
            return
        if claimed.messages:
            self._deliver(session, claimed.messages)
        if claimed.messages or claimed.stale:
            session.seen_moves = ""
        self._end_fetch(session, more=True)

    def _end_fetch(self, session: LiveSession, more: bool) -> None:
        session.fetching = False
        if not more:
            session.seen_moves = ""
            self._deliver(session, [])
        # After the notification, whose bytes are charged by then.
        self._loop.call_soon(session.client.budget.release, self._fetch_bytes)
        session.removed_during_fetch.clear()
        again = more or session.more_waiting or session.resend
        if again and self._by_queue.get(session.queue) is session:
            self.wake(session.queue)

    def _deliver(self, session: LiveSession, fetched: list[StoredMessage]) -> None:
        """Deliver fetched messages and those sent during the fetch, in order of arrival."""
        messages, session.sent_during_fetch = fetched + session.sent_during_fetch, []
        if session.removed_during_fetch:
            removed = session.removed_during_fetch
            messages = [each for each in messages if each.id not in removed]
        # Before a resend nothing is delivered: an older message was lost.
        if messages and not session.resend:
            self._notifier.deliver(session, sorted(messages, key=lambda each: each.sequence))

    def _fetch_failed(self, session: LiveSession, error: BaseException) -> None:
        # Redis may have given messages to the session that did not arrive here. They have to be
        # sent again, before messages that were sent during the fetch.
        lost = session.fetch_resends or not isinstance(error, RedisUnavailable)
        if lost or session.sent_during_fetch:
            session.resend = True
        self._log.warning("pull_failed", queue=session.queue, error=repr(error))
        self._loop.call_later(RETRY_S, self._end_fetch, session, True)

    # Checking and restoring

    async def check_all(self) -> None:
        """Find messages and replaced sessions that no hint reported."""
        await self.by_did.check_all()
        queues = list(self._by_queue)
        for start in range(0, len(queues), SESSIONS_PER_CHECK):
            await self._check(queues[start : start + SESSIONS_PER_CHECK])

    async def _check(self, queues: list[str]) -> None:
        found = [each for each in map(self._by_queue.get, queues) if each is not None]
        replies = await asyncio.gather(*(self._store.sessions.read(each.queue) for each in found))
        for session, reply in zip(found, replies, strict=True):
            if self._by_queue.get(session.queue) is not session:
                continue
            if not isinstance(reply, SessionStatus) or reply.term != session.term:
                # Another session replaced it, or a restore is under way: Redis decides.
                await self.restore(session)
            elif reply.pending:
                self.wake(session.queue)

    async def restore_partition(self, partition: int) -> None:
        """Our lease had run out: restore the sessions that nobody else has."""
        partition_of = self._store.partition_of
        sessions = [each for each in self if partition_of(each.queue) == partition]
        for start in range(0, len(sessions), SESSIONS_PER_CHECK):
            some = sessions[start : start + SESSIONS_PER_CHECK]
            await asyncio.gather(*map(self.restore, some))

    async def restore(self, session: LiveSession) -> None:
        """Open the session again, unless another one has replaced it. Restores of a session do not
        overlap: of two replies, the last to arrive may have the older term."""
        if session.restoring:
            return
        session.restoring = True
        try:
            reply = await self._store.sessions.open(
                session.queue, session.id, session.client.id, session.term
            )
        finally:
            session.restoring = False
        opened = isinstance(reply, SessionOpened)
        if self._by_queue.get(session.queue) is not session:
            if opened and session.queue not in self._by_queue:
                # The client disconnected during the restore.
                await self._close_term(session.queue, reply.term)
            return
        if reply == "taken":
            self.ended_elsewhere(session.queue, session.term)
        elif opened:
            session.term = reply.term
            self.wake(session.queue)
