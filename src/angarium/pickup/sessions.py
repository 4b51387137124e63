"""The live sessions that this gateway holds, and the messages it fetches for them.

One fetch at a time for each session, so its messages leave in the order of arrival. A hint says
that there is mail; looking at all sessions every few seconds finds what no hint told. When this
gateway's lease ran out, its sessions are claimed again, unless another gateway has them by now.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from angarium.core import log
from angarium.core.errors import AngariumError, NotDurable, OutcomeUnknown, RedisUnavailable
from angarium.core.scripts import status_of
from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.jsonrpc import notification
from angarium.pickup.mailbox import Mailbox
from angarium.pickup.model import Message, connection_of, encode_message
from angarium.pickup.store import PickupStore, messages_of

# After a fault: soon enough to go unnoticed, late enough not to storm a server that comes back.
RETRY_S = 0.25
CHECKED_PER_TURN = 500


class LiveSession:
    __slots__ = (
        "asked_again",
        "client",
        "connection",
        "early",
        "full",
        "id",
        "mail",
        "pulling",
        "queue",
        "recover",
        "seen",
        "term",
    )

    def __init__(self, queue: str, session_id: str, client: ClientSocket, term: str) -> None:
        self.queue = queue
        self.connection = connection_of(queue)
        self.id = session_id
        self.client = client
        self.term = term
        self.pulling = False
        self.mail = False  # there may be more than the fetch under way will bring
        self.recover = False  # an answer was lost: what we hold is to be sent again
        self.asked_again = False  # the fetch under way does so
        self.early: list[Message] = []  # sent to it while a fetch was under way
        self.full = False  # it gets nothing more before something is acknowledged
        self.seen = ""


class Sessions:
    """`spawn` runs a coroutine for us that catches its own errors."""

    def __init__(
        self,
        store: PickupStore,
        mailbox: Mailbox,
        spawn: Callable[[Awaitable[object]], None],
    ) -> None:
        self._store = store
        self._mailbox = mailbox
        self._spawn = spawn
        self._by_queue: dict[str, LiveSession] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._log = log.logger("angarium.pickup")
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._by_queue)

    async def open(self, client: ClientSocket, queue: str, session_id: str) -> LiveSession | None:
        """The queue's live session from now on; None if the client left meanwhile."""
        while True:
            reply = await self._store.open_session(queue, session_id, client.id)
            if status_of(reply) != "no_lease":
                break
            await self._store.renew_gateway(self._store.partition_of(queue))
        if not client.open:
            await self._store.close_session(queue, gateway=self._store.gateway, socket=client.id)
            return None
        self.drop(queue)
        session = LiveSession(queue, session_id, client, reply[1].decode())
        self._by_queue[queue] = session
        client.sessions[queue] = session
        return session

    async def close(self, client: ClientSocket, queue: str, session_id: str) -> bool:
        """End the session that is meant: this client's, or the one with this id."""
        if session_id:
            found = await self._store.read_session(queue)
            gateway = found[2].decode() if status_of(found) == "live" else self._store.gateway
            closing = self._store.close_session(queue, gateway=gateway, session=session_id)
        else:
            gateway = self._store.gateway
            closing = self._store.close_session(queue, gateway=gateway, socket=client.id)
        closed = status_of(await closing) == "closed"
        session = self._by_queue.get(queue)
        if closed and session is not None and session.id == (session_id or session.id):
            self.drop(queue)
        return closed

    def client_gone(self, client: ClientSocket) -> None:
        """All its sessions end; what it did not acknowledge waits for the next."""
        queues = list(client.sessions)
        for queue in queues:
            self.drop(queue)
        if queues:
            self._spawn(self._close_all(queues, client.id))

    async def close_everything(self) -> None:
        sessions = list(self._by_queue.values())
        self._by_queue.clear()
        closing = [
            self._store.close_session(
                each.queue, gateway=self._store.gateway, socket=each.client.id
            )
            for each in sessions
        ]
        await asyncio.gather(*closing, return_exceptions=True)

    async def _close_all(self, queues: list[str], socket: str) -> None:
        pending = queues
        while pending:
            closing = [
                self._store.close_session(queue, gateway=self._store.gateway, socket=socket)
                for queue in pending
            ]
            results = await asyncio.gather(*closing, return_exceptions=True)
            pending = [
                queue
                for queue, result in zip(pending, results, strict=True)
                if isinstance(result, RedisUnavailable | OutcomeUnknown | NotDurable)
            ]
            if pending:
                await asyncio.sleep(RETRY_S)

    def drop(self, queue: str, term: str | None = None) -> None:
        """Forget it here, if it is the one of this term."""
        session = self._by_queue.get(queue)
        if session is not None and term in (None, session.term):
            del self._by_queue[queue]
            session.client.sessions.pop(queue, None)

    # Mail

    def wake(self, queue: str) -> None:
        """There may be mail."""
        session = self._by_queue.get(queue)
        if session is None:
            return
        if session.pulling or session.client.paused:
            session.mail = True
            return
        self._pull(session)

    def sent(
        self, queue: str, message: Message, term: bytes, sequence: int, received_ms: int
    ) -> None:
        """A message went to the session as it was added: nothing was before it."""
        session = self._by_queue.get(queue)
        if session is None:
            return  # it has just ended, and the message waits for the next
        if session.term != term.decode():
            self.recover(queue)
            return
        whole = message._replace(sequence=sequence, received_ms=received_ms)
        if session.pulling:
            # What the fetch brings may be older, or newer.
            session.early.append(whole)
        else:
            self._deliver(session, [whole])

    def recover(self, queue: str) -> None:
        """The session may hold what it never got: send again all that it holds."""
        session = self._by_queue.get(queue)
        if session is not None:
            session.recover = True
            self.wake(queue)

    def acknowledged(self, queue: str) -> None:
        """Something was removed: a session whose window was full has room again."""
        session = self._by_queue.get(queue)
        if session is not None and session.full and not session.pulling:
            self.wake(queue)

    def wake_client(self, client: ClientSocket) -> None:
        """It reads again."""
        for session in list(client.sessions.values()):
            if session.mail and not session.pulling:
                self._pull(session)

    def _pull(self, session: LiveSession) -> None:
        session.pulling, session.mail, session.full = True, False, False
        again = session.asked_again = session.recover
        session.recover = False
        try:
            future = self._store.pull(session.queue, session.term, again=again, seen=session.seen)
        except AngariumError as error:
            self._failed(session, error)
            return
        future.add_done_callback(partial(self._pulled, session))

    def _pulled(self, session: LiveSession, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            session.pulling = False
            return
        error = future.exception()
        if error is not None:
            self._failed(session, error)
            return
        reply = future.result()
        status = reply[0]
        if status == b"pulled":
            self._bring(session, messages_of(reply[2:]))
            self._next(session, more=bool(reply[1]))
        elif status == b"archived":
            session.seen = reply[1].decode()
            self._spawn(self._pull_archived(session))
        elif status == b"busy":
            self._pull(session)
        elif status == b"lost":
            self.drop(session.queue, session.term)
        elif status == b"uncharted":
            self._loop.call_later(RETRY_S, self._next, session, True)
        else:
            # The window is full, or an earlier session's messages are in their grace period: an
            # acknowledgement or their return wakes us, or the next look at all.
            session.full = True
            self._next(session, more=False)

    async def _pull_archived(self, session: LiveSession) -> None:
        try:
            found, _ = await self._mailbox.pull_archived(session.queue, session.term)
        except Exception as error:
            session.seen = ""
            self._failed(session, error)
            return
        if found:
            self._bring(session, found)
            session.seen = ""
        self._next(session, more=True)

    def _next(self, session: LiveSession, more: bool) -> None:
        session.pulling = False
        if not more:
            session.seen = ""
            self._bring(session, [])
        again = more or session.mail or session.recover
        if again and self._by_queue.get(session.queue) is session:
            self.wake(session.queue)

    def _bring(self, session: LiveSession, found: list[Message]) -> None:
        """What was fetched and what was sent meanwhile, in order of arrival."""
        early, session.early = session.early, []
        # If something older was lost on the way, all that the session holds comes again, in order.
        if not session.recover and (found or early):
            self._deliver(session, sorted(found + early, key=_sequence))

    def _failed(self, session: LiveSession, error: BaseException) -> None:
        # What was fetched and did not arrive here is ours already: it has to be asked for. So has
        # what was sent meanwhile, for it must not come before that.
        lost = session.asked_again or not isinstance(error, RedisUnavailable)
        if lost or session.early:
            session.recover = True
        self._log.warning("pull_failed", queue=session.queue, error=repr(error))
        self._loop.call_later(RETRY_S, self._next, session, True)

    def _deliver(self, session: LiveSession, messages: list[Message]) -> None:
        client = session.client
        self.delivered += len(messages)
        connection = _quoted(session.connection)
        number = next(self._numbers)
        encoded = [encode_message(each) for each in messages]
        if "messageReceived" in client.events and "messagesReceived" not in client.events:
            for each in encoded:
                params = b'{"connectionId":%b,"message":%b,"id":"%d"}' % (connection, each, number)
                client.send(notification("messageReceived", params))
            return
        params = b'{"connectionId":%b,"messages":[%b],"id":"%d"}' % (
            connection,
            b",".join(encoded),
            number,
        )
        client.send(notification("messagesReceived", params))

    # Truth

    async def look_at_all(self) -> None:
        """What no hint told: mail that waits, sessions that are no longer ours."""
        queues = list(self._by_queue)
        for start in range(0, len(queues), CHECKED_PER_TURN):
            await self._look_at(queues[start : start + CHECKED_PER_TURN])

    async def _look_at(self, queues: list[str]) -> None:
        before = {queue: self._by_queue[queue] for queue in queues if queue in self._by_queue}
        replies = await asyncio.gather(*map(self._store.read_session, before))
        for (queue, session), reply in zip(before.items(), replies, strict=True):
            if self._by_queue.get(queue) is not session:
                continue
            if status_of(reply) != "live":
                await self._restore(session)
            elif reply[3].decode() != session.term:
                self.drop(queue, session.term)
            elif reply[4]:
                self.wake(queue)

    async def restore(self, partition: int) -> None:
        """Our lease had run out: claim again what nobody else has claimed."""
        ours = [
            each
            for each in self._by_queue.values()
            if self._store.partition_of(each.queue) == partition
        ]
        for start in range(0, len(ours), CHECKED_PER_TURN):
            some = ours[start : start + CHECKED_PER_TURN]
            await asyncio.gather(*map(self._restore, some))

    async def _restore(self, session: LiveSession) -> None:
        reply = await self._store.open_session(
            session.queue, session.id, session.client.id, session.term
        )
        status = status_of(reply)
        if self._by_queue.get(session.queue) is not session:
            return
        if status == "taken":
            self.drop(session.queue, session.term)
        elif status in ("opened", "kept"):
            session.term = reply[1].decode()
            self.wake(session.queue)

    def queues(self) -> Iterable[str]:
        return self._by_queue.keys()


def _sequence(message: Message) -> int:
    return message.sequence


def _quoted(text: str) -> bytes:
    import msgspec

    return msgspec.json.encode(text)
