"""Live sessions by recipient DID: messages of any connection that name the recipient.

A session that names no connection has the queue of its recipient, like any session. Beside that,
this gateway takes the recipient's messages from the queues of connections that have no live session
of their own, as a taker does, and delivers them with their connection's id. Order holds within a
connection. Messages that the client does not acknowledge are pending again when the session ends,
after the grace period, or after `sending_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.delivery_notifier import DeliveryNotifier
from angarium.pickup.limits import PickupLimits
from angarium.pickup.live_session import LiveSession
from angarium.pickup.queues import GRACE_POLL_S, PickupQueues
from angarium.pickup.settings import PickupSettings
from angarium.pickup.store import PULL_BYTES_MAX, PULL_MESSAGES_MAX, PickupStore, TakeLimits
from angarium.runtime import log
from angarium.runtime.errors import AngariumError

RETRY_S = 0.25


@dataclass(eq=False)
class _FollowedQueue:
    """`deliveries` stands for the session in notifications, with the connection of this queue.
    `unacknowledged`: message id → when it is pending again, by the loop's clock."""

    deliveries: LiveSession
    fetching: bool = False
    again: bool = False
    unacknowledged: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class _Following:
    """`begun`: messages of earlier sessions have their grace period, so this one may take."""

    session: LiveSession
    queues: dict[str, _FollowedQueue] = field(default_factory=dict)
    begun: bool = False


class DidSessions:
    """`spawn` runs a coroutine that catches its own errors."""

    def __init__(
        self,
        store: PickupStore,
        queues: PickupQueues,
        notifier: DeliveryNotifier,
        spawn: Callable[[Coroutine[Any, Any, object]], None],
    ) -> None:
        self._store = store
        self._queues = queues
        self._notifier = notifier
        self._spawn = spawn
        settings = store.runtime.settings
        self._window = settings.limits_of(PickupLimits).pickup_sending_messages_max
        self._sending_s = settings.group(PickupSettings).sending_ms / 1000
        self._followed: dict[str, _Following] = {}  # by the queue of the recipient, `tenant:did`
        # The recipients of `_followed` that follow a queue of a connection.
        self._recipients: dict[str, set[str]] = {}
        self._loop = asyncio.get_running_loop()
        self._log = log.logger("angarium.pickup")

    # Sessions

    def opened(self, session: LiveSession) -> None:
        """Deliver what waits for the recipient, and what arrives from now on."""
        following = self._followed[session.queue] = _Following(session)
        self._spawn(self._begin(session.queue, following))

    async def _begin(self, recipient: str, following: _Following) -> None:
        """An earlier session of the recipient may still acknowledge older messages."""
        dids = self._store.dids
        try:
            await dids.begin_grace(await dids.queues_of(recipient))
            following.begun = True
            await dids.name_session(recipient, open=True)
            queues = await dids.queues_of(recipient)
        except AngariumError as error:
            # The periodic check tries again.
            self._log.warning("did_session_not_begun", queue=recipient, error=repr(error))
            return
        for queue in queues:
            self._wake_one(recipient, queue)

    def ended(self, session: LiveSession) -> None:
        recipient = session.queue
        found = self._followed.get(recipient)
        if found is not None and found.session is session:
            del self._followed[recipient]
            for queue in found.queues:
                self._unlist(recipient, queue)
            self._spawn(self._end(recipient, found.queues))

    async def _end(self, recipient: str, queues: dict[str, _FollowedQueue]) -> None:
        try:
            if recipient not in self._followed:
                await self._store.dids.name_session(recipient, open=False)
            await self._store.dids.begin_grace(
                queue for queue, followed in queues.items() if followed.unacknowledged
            )
        except AngariumError as error:
            # The sweeper makes the messages pending again when their time is over.
            self._log.warning("did_session_not_ended", queue=recipient, error=repr(error))

    async def check_all(self) -> None:
        """Find messages that no hint reported, and name the sessions again if Redis lost them."""
        for recipient, following in list(self._followed.items()):
            if not following.begun:
                await self._begin(recipient, following)
                continue
            await self._store.dids.name_session(recipient, open=True)
            for queue in await self._store.dids.queues_of(recipient):
                self._wake_one(recipient, queue)

    # Messages

    def wake(self, queue: str, dids: Iterable[str]) -> None:
        """A message for these recipients was added to the queue."""
        tenant = queue.partition(":")[0]
        for did in dids:
            self._wake_one(f"{tenant}:{did}", queue)

    def _wake_one(self, recipient: str, queue: str) -> None:
        found = self._followed.get(recipient)
        if found is None or not found.begun or queue == recipient:
            return
        session, queues = found.session, found.queues
        if queue not in queues:
            deliveries = LiveSession(queue, session.id, session.client, session.term)
            queues[queue] = _FollowedQueue(deliveries)
            self._recipients.setdefault(queue, set()).add(recipient)
        followed = queues[queue]
        if followed.fetching:
            followed.again = True
        else:
            followed.fetching = True
            self._spawn(self._fetch(recipient, session, followed))

    def acknowledged(self, queue: str, ids: Sequence[str]) -> None:
        """Messages were removed: there is space for further ones."""
        for recipient in list(self._recipients.get(queue, ())):
            followed = self._followed[recipient].queues[queue]
            was_full = len(followed.unacknowledged) >= self._window
            for each in ids:
                followed.unacknowledged.pop(each, None)
            if was_full:
                self._wake_one(recipient, queue)
            self._forget_idle(recipient, queue)

    def _forget_idle(self, recipient: str, queue: str) -> None:
        """A session may live for months; it remembers only connections with messages under way."""
        found = self._followed.get(recipient)
        followed = None if found is None else found.queues.get(queue)
        if found is None or followed is None or followed.fetching or followed.again:
            return
        if not followed.unacknowledged:
            del found.queues[queue]
            self._unlist(recipient, queue)

    def _unlist(self, recipient: str, queue: str) -> None:
        self._recipients[queue].discard(recipient)
        if not self._recipients[queue]:
            del self._recipients[queue]

    def client_writable(self, client: ClientSocket) -> None:
        """The client is no longer slow."""
        for session in list(client.sessions.values()):
            following = self._followed.get(session.queue)
            if session.by_did and following is not None:
                for queue in list(following.queues):
                    self._wake_one(session.queue, queue)

    async def _fetch(self, recipient: str, session: LiveSession, followed: _FollowedQueue) -> None:
        """Take and deliver until nothing is left, the window is full or the client is slow."""
        pause_s = 0.0
        try:
            while self._is_open(recipient, session):
                followed.again = False
                free = self._free(followed)
                if free <= 0 or session.client.slow:
                    followed.again = True  # an acknowledgement or the client continues
                    break
                limits = TakeLimits(min(free, PULL_MESSAGES_MAX), PULL_BYTES_MAX)
                did = recipient.partition(":")[2]
                taken = await self._queues.take_now(followed.deliveries.queue, did, limits)
                if not self._is_open(recipient, session):
                    await self._queues.give_back(followed.deliveries.queue, taken.due)
                    break
                if taken.in_grace:
                    pause_s = GRACE_POLL_S
                    break
                if not taken.messages:
                    if followed.again:
                        continue
                    break
                until_s = self._loop.time() + self._sending_s
                followed.unacknowledged |= dict.fromkeys(taken.due, until_s)
                self._notifier.deliver(followed.deliveries, taken.messages)
        except AngariumError as error:
            self._log.warning("did_fetch_failed", queue=recipient, error=repr(error))
            pause_s = RETRY_S
        finally:
            followed.fetching = False
        queue = followed.deliveries.queue
        if pause_s:
            self._loop.call_later(pause_s, self._wake_one, recipient, queue)
        if self._is_open(recipient, session):
            self._forget_idle(recipient, queue)

    def _is_open(self, recipient: str, session: LiveSession) -> bool:
        found = self._followed.get(recipient)
        return found is not None and found.session is session and session.client.open

    def _free(self, followed: _FollowedQueue) -> int:
        """Space in the window. Messages whose time is over are pending again."""
        if len(followed.unacknowledged) >= self._window:
            now_s = self._loop.time()
            followed.unacknowledged = {
                each: until_s
                for each, until_s in followed.unacknowledged.items()
                if until_s > now_s
            }
        return self._window - len(followed.unacknowledged)
