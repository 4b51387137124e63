"""The live sessions that this gateway holds, and the messages it fetches for them.

One fetch at a time for each session, so its messages leave in the order of arrival. A hint says
that there is mail; looking at all sessions every few seconds finds what no hint told. When this
gateway's lease ran out, its sessions are claimed again, unless another gateway has them by now.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.jsonrpc import notification
from angarium.pickup.mailbox import Mailbox
from angarium.pickup.model import Message, connection_of, encode_message
from angarium.pickup.store import PULL_BYTES_MAX, PULL_MESSAGES_MAX, PickupStore, messages_of
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, NotDurable, OutcomeUnknown, RedisUnavailable
from angarium.runtime.scripts import status_of

# After a fault: soon enough to go unnoticed, late enough not to storm a server that comes back.
RETRY_S = 0.25
CHECKED_PER_TURN = 500
# A process that wakes up has read by then whether a client has left, whose request it read first.
NOTICE_S = 0.05


class LiveSession:
    __slots__ = (
        "asked_again",
        "asked_term",
        "client",
        "connection",
        "early",
        "full",
        "gone",
        "id",
        "mail",
        "pulling",
        "queue",
        "ready",
        "recover",
        "restoring",
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
        self.asked_again = self.restoring = False  # the fetch under way does so
        self.asked_term = term  # of the fetch under way
        self.early: list[Message] = []  # sent to it while a fetch was under way
        self.ready: list[Message] = []  # to be told at the end of this turn of the loop
        self.gone: set[str] = set()  # removed while a fetch was under way, which may bring them
        self.full = False  # it gets nothing more before something is acknowledged
        self.seen = ""


class Sessions:
    """`spawn` runs a coroutine for us that catches its own errors."""

    def __init__(
        self,
        store: PickupStore,
        mailbox: Mailbox,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
        share_bytes: int,
    ) -> None:
        """`share_bytes` of its client's budget are reserved for each fetch under way."""
        self._store = store
        self._mailbox = mailbox
        self._spawn = spawn
        self._share = share_bytes
        self._by_queue: dict[str, LiveSession] = {}
        self._opening: Counter[str] = Counter()
        self._telling: list[LiveSession] = []
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._log = log.logger("angarium.pickup")
        self._tracing = store.runtime.tracing
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._by_queue)

    async def open(self, client: ClientSocket, queue: str, session_id: str) -> LiveSession | None:
        """The queue's live session from now on; None if the client left meanwhile."""
        self._opening[queue] += 1
        try:
            opened = await self._open(client, queue, session_id)
        finally:
            self._opening[queue] -= 1
            if not self._opening[queue]:
                del self._opening[queue]
        if opened is None:
            return None
        status, term = opened
        if not client.open:
            await self._store.close_session(queue, gateway=self._store.gateway, socket=client.id)
            return None
        before = self._by_queue.get(queue)
        if before is not None and before.client is client and before.term == term:
            return before
        self.drop(queue)
        session = LiveSession(queue, session_id, client, term)
        # Its first answer was lost, and with it perhaps that of a message it was sent.
        session.recover = status == "kept"
        self._by_queue[queue] = session
        client.sessions[queue] = session
        return session

    async def _open(self, client: ClientSocket, queue: str, id: str) -> tuple[str, str] | None:
        """Status and term. While Redis was away, or this process was stopped, the client may have
        gone to another gateway: a session that began since is replaced only if it is still here."""
        partition = self._store.partition_of(queue)
        asked_ms: int | str = self._store.asked_ms(partition)
        while True:
            asking = self._store.open_session(queue, id, client.id, asked_ms=asked_ms)
            match status_of(reply := await asking):
                case "late":
                    await asyncio.sleep(NOTICE_S)
                    if not client.open:
                        return None
                    asked_ms = ""
                case "no_lease":
                    await self._store.renew_gateway(partition)
                case status:
                    return status, reply[1].decode()

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

    def ended_elsewhere(self, queue: str, term: str) -> None:
        """Another session took over, or somebody else ended it; our list of sessions is mended."""
        self.drop(queue, term)
        self._spawn(self._close_term(queue, term))

    async def _close_term(self, queue: str, term: str) -> None:
        try:
            await self._store.close_session(queue, gateway=self._store.gateway, term=term)
        except AngariumError as error:
            self._log.warning("session_not_closed", queue=queue, error=repr(error))

    def _orphaned(self, queue: str) -> None:
        """Mail for a session that we do not have: it has just ended, or was never ours to have."""
        if queue not in self._opening:
            self._spawn(self._close_orphan(queue))

    async def _close_orphan(self, queue: str) -> None:
        reply = await self._store.read_session(queue)
        if status_of(reply) != "live" or reply[2].decode() != self._store.gateway:
            return
        if queue not in self._opening and queue not in self._by_queue:
            self._log.warning("orphan_closed", queue=queue)
            await self._close_term(queue, reply[3].decode())

    # Mail

    def wake(self, queue: str) -> None:
        """There may be mail."""
        session = self._by_queue.get(queue)
        if session is None:
            self._orphaned(queue)
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
            self._orphaned(queue)  # the message waits for the next
            return
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

    def acknowledged(self, queue: str, ids: Sequence[str] = ()) -> None:
        """Something was removed: it is not told any more, and a full window has space again."""
        session = self._by_queue.get(queue)
        if session is None:
            return
        if session.pulling:
            session.gone.update(ids)
        elif session.full:
            self.wake(queue)
        if session.ready:
            session.ready = [each for each in session.ready if each.id not in ids]

    def wake_client(self, client: ClientSocket) -> None:
        """It reads again."""
        for session in list(client.sessions.values()):
            if session.mail and not session.pulling:
                self._pull(session)

    def is_slow(self, queue: str) -> bool:
        """Whether its client has much to read: what comes now is better left in Redis."""
        session = self._by_queue.get(queue)
        return session is not None and session.client.paused

    def _pull(self, session: LiveSession) -> None:
        """Fetch when its client has the bytes for it: all its sessions together must not bring
        more than it can read."""
        session.pulling, session.mail, session.full = True, False, False
        session.client.budget.request(self._share, partial(self._fetch, session))

    def _fetch(self, session: LiveSession) -> None:
        client = session.client
        if client.paused or self._by_queue.get(session.queue) is not session:
            # It goes on when the client has read, if it is still there.
            session.pulling, session.mail = False, True
            client.budget.release(self._share)
            return
        again = session.asked_again = session.recover
        session.recover, session.asked_term = False, session.term
        try:
            future = self._store.pull(session.queue, session.term, again=again, seen=session.seen)
        except AngariumError as error:
            self._failed(session, error)
            return
        future.add_done_callback(partial(self._pulled, session))

    def _pulled(self, session: LiveSession, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            session.pulling = False
            session.client.budget.release(self._share)
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
            self._spawn(self._pull_archived(session, reply[2]))
        elif status == b"busy":
            self._fetch(session)
        elif status == b"lost":
            self._lost(session)
        elif status == b"uncharted":
            self._loop.call_later(RETRY_S, self._next, session, True)
        else:
            # The window is full, or an earlier session's messages are in their grace period: an
            # acknowledgement or their return wakes us, or the next look at all.
            session.full = True
            self._next(session, more=False)

    def _lost(self, session: LiveSession) -> None:
        if session.term == session.asked_term:
            # Replaced by another session, or closed while our lease had run out. Only Redis knows
            # which, and a client that is still there must not lose its session unawares.
            session.early.clear()
            self._spawn(self._reclaim(session))
        else:
            self._next(session, more=True)  # it was claimed again while the fetch was under way

    async def _reclaim(self, session: LiveSession) -> None:
        try:
            await self._restore(session)
        except AngariumError as error:
            # Left to the next renewal of the lease, or to the next look at all.
            self._log.warning("session_not_restored", queue=session.queue, error=repr(error))
        finally:
            self._next(session, more=False)

    async def _pull_archived(self, session: LiveSession, cleared: bytes) -> None:
        try:
            claimed = await self._mailbox.pull_archived(session.queue, session.term, cleared)
        except Exception as error:
            session.seen = ""
            self._failed(session, error)
            return
        if claimed.messages:
            self._bring(session, claimed.messages)
        if claimed.messages or claimed.torn:
            session.seen = ""
        self._next(session, more=True)

    def _next(self, session: LiveSession, more: bool) -> None:
        session.pulling = False
        if not more:
            session.seen = ""
            self._bring(session, [])
        # Behind the notification, which is counted by then.
        self._loop.call_soon(session.client.budget.release, self._share)
        session.gone.clear()
        again = more or session.mail or session.recover
        if again and self._by_queue.get(session.queue) is session:
            self.wake(session.queue)

    def _bring(self, session: LiveSession, found: list[Message]) -> None:
        """What was fetched and what was sent meanwhile, in order of arrival."""
        early, session.early = session.early, []
        if session.gone:
            found = [each for each in found if each.id not in session.gone]
            early = [each for each in early if each.id not in session.gone]
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
        """What comes for a session in one turn of the loop leaves together."""
        self.delivered += len(messages)
        if not session.ready:
            if not self._telling:
                self._loop.call_soon(self._tell_all)
            self._telling.append(session)
        session.ready += messages

    def _tell_all(self) -> None:
        telling, self._telling = self._telling, []
        for session in telling:
            ready, session.ready = session.ready, []
            for portion in _portions(ready):
                self._tell(session, portion)

    def _tell(self, session: LiveSession, messages: list[Message]) -> None:
        client = session.client
        connection = msgspec.json.encode(session.connection)
        number = next(self._numbers)
        encoded = [encode_message(each) for each in messages]
        if self._tracing is not None:
            self._tracing.follow([each.id for each in messages], "pickup send", kind="producer")
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
        found = [each for each in map(self._by_queue.get, queues) if each is not None]
        replies = await asyncio.gather(*(self._store.read_session(each.queue) for each in found))
        for session, reply in zip(found, replies, strict=True):
            if self._by_queue.get(session.queue) is not session:
                continue
            if status_of(reply) != "live" or reply[3].decode() != session.term:
                # Another's, or ours under a term that we are about to learn: only Redis knows.
                await self._restore(session)
            elif reply[4]:
                self.wake(session.queue)

    async def restore(self, partition: int) -> None:
        """Our lease had run out: claim again what nobody else has claimed."""
        place = self._store.partition_of
        ours = [each for each in self._by_queue.values() if place(each.queue) == partition]
        for start in range(0, len(ours), CHECKED_PER_TURN):
            some = ours[start : start + CHECKED_PER_TURN]
            await asyncio.gather(*map(self._restore, some))

    async def _restore(self, session: LiveSession) -> None:
        """One at a time: of two answers the one that comes last need not be the newer one."""
        if session.restoring:
            return
        session.restoring = True
        try:
            whose = session.queue, session.id, session.client.id, session.term
            reply = await self._store.open_session(*whose)
        finally:
            session.restoring = False
        status = status_of(reply)
        if self._by_queue.get(session.queue) is not session:
            if status in ("opened", "kept") and session.queue not in self._by_queue:
                # Its client left while it was claimed.
                await self._close_term(session.queue, reply[1].decode())
            return
        if status == "taken":
            self.ended_elsewhere(session.queue, session.term)
        elif status in ("opened", "kept"):
            session.term = reply[1].decode()
            self.wake(session.queue)


def _sequence(message: Message) -> int:
    return message.sequence


def _portions(messages: list[Message]) -> Iterator[list[Message]]:
    """As many as one notification may have."""
    portion: list[Message] = []
    size = 0
    for each in messages:
        size += len(each.payload)
        if portion and (size > PULL_BYTES_MAX or len(portion) == PULL_MESSAGES_MAX):
            yield portion
            portion, size = [], len(each.payload)
        portion.append(each)
    if portion:
        yield portion
