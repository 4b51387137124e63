"""The dispatcher's connections to workers: dialled, greeted, dealt to in turn, watched.

A link has space while it has shown itself, holds fewer messages than its window and reads what it
is sent. Messages are dealt round robin over the links with space. What a link held when it broke,
and what it refused, is handed to the owner; what became of a message in Redis is not known here.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from angarium.dispatch import security
from angarium.dispatch.counts import DispatcherCounts
from angarium.dispatch.errors import FrameInvalid, TokenRefused
from angarium.dispatch.frames import encode_messages
from angarium.dispatch.protocol import (
    Acknowledged,
    Answer,
    Broken,
    DispatcherSide,
    Greeted,
    Greeting,
    Refused,
    Rejected,
    farewell,
    heartbeat,
)
from angarium.dispatch.warnings import RepeatedWarnings
from angarium.redis.backoff import Backoff
from angarium.runtime import log
from angarium.runtime.clock import Clock
from angarium.runtime.tracing import Tracing

CONNECT_TIMEOUT_S = 5.0
# A worker of ours says HELLO at once; one of another make never does, and need not wait long.
HELLO_WAIT_S = 0.25
# After this many heartbeats without a byte, a worker that greeted us is gone or hangs.
SILENT_BEATS_MAX = 3
# A link whose unsent bytes pass this reads too slowly to be given more.
WRITE_BUFFER_BYTES_MAX = 4 * 1024 * 1024

Message = tuple[bytes, bytes]


@dataclass(frozen=True)
class LinkTerms:
    """What every link is opened with."""

    token: str | None
    tls: ssl.SSLContext | None
    frame_bytes_max: int
    window: int  # of a worker that does not name one
    heartbeat_s: float
    name: str  # of this dispatcher
    tracing: Tracing | None = None


class LinkOwner:
    """What a link tells. The dispatcher fills it in."""

    def acknowledged(self, link: Link, ids: Sequence[bytes]) -> None: ...
    def rejected(self, link: Link, rejected: Rejected) -> None: ...
    def lost(self, link: Link, held: Sequence[bytes]) -> None: ...
    def has_space(self) -> None: ...


class Link(asyncio.Protocol):
    """One connection. `held` are the messages it was sent and has not answered for."""

    def __init__(
        self,
        address: str,
        terms: LinkTerms,
        owner: LinkOwner,
        counts: DispatcherCounts,
        warnings: RepeatedWarnings,
    ) -> None:
        self.address = address
        self.consumer = address
        self.completes = False
        self.held: dict[bytes, float] = {}  # and when they were sent, oldest first
        self._window = 0
        self._allowed = 0  # what is left of the window after acknowledgements failed to come
        self._acknowledged = False  # since the last time that one did
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._terms = terms
        self._owner = owner
        self._counts = counts
        self._warnings = warnings
        self._said_why = False  # one of both sides has, so the end of the link is no riddle
        greeting = Greeting(consumer_id=terms.name)
        self._side = DispatcherSide(terms.frame_bytes_max, terms.token, greeting, dials=True)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.greeted = False
        self._paused = False
        self.retired = False  # it left the list of consumers: it may finish, and gets no more
        self.leaving = False  # it gives messages back: no more until it greets again
        self._heard = True  # since the last beat
        self._silent_beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._log = log.logger("angarium.dispatch", consumer=address)

    @property
    def space(self) -> int:
        """Messages it can be sent now."""
        if self._paused or self.retired or self.leaving:
            return 0
        if self._transport is None or self._transport.is_closing():
            return 0
        return max(0, self._allowed - len(self.held))

    def send(self, messages: Sequence[Message]) -> None:
        assert self._transport is not None
        now_s = self._loop.time()
        self.held.update(dict.fromkeys([message_id for message_id, _ in messages], now_s))
        self._transport.write(encode_messages(messages))
        tracing = self._terms.tracing
        if tracing is not None:
            values = {"angarium.consumer": self.consumer}
            tracing.messages("dispatch send", messages, time.time_ns(), values)

    def answered(self, ids: Sequence[bytes]) -> int:
        """These are done with, one way or the other; how many of them it did not hold."""
        held, foreign = self.held, 0
        for message_id in ids:
            if message_id in held:
                del held[message_id]
            else:
                foreign += 1
        self._acknowledged = True
        self._allowed = min(self._window, self._allowed * 2)
        return foreign

    def expired(self, ids: Sequence[bytes]) -> None:
        """No answer came for these, and another link gets them. One that goes on like this is
        given less and less, for each of its messages arrives late."""
        for message_id in ids:
            self.held.pop(message_id, None)
        if not self._acknowledged:
            self._allowed = max(1, self._allowed // 2)
        self._acknowledged = False

    def forget(self, before_s: float) -> int:
        """Drop what was sent before that and is nobody's any more: finished elsewhere, or taken
        over by another leader. Without it such messages would fill the window for ever."""
        old = []
        for message_id, sent_s in self.held.items():
            if sent_s >= before_s:
                break
            old.append(message_id)
        for message_id in old:
            del self.held[message_id]
        return len(old)

    def answer(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # What the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        self._timer = self._loop.call_later(HELLO_WAIT_S, self._no_hello)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        for event in self._side.receive(data):
            match event:
                case Acknowledged(ids):
                    self._owner.acknowledged(self, ids)
                case Rejected():
                    self._owner.rejected(self, event)
                case Answer(answer):
                    self.answer(answer)
                case Greeted(greeting):
                    self._greet(greeting)
                case Refused(text):
                    self._said_why = True
                    self._warn("worker_refused", why=text)
                case Broken(error):
                    self._refuse(error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._owner.has_space()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._side.incomplete:
            self._counts.frames_cut += 1
        if not self._side.trusted and not self._said_why:
            problem = "the connection ended before a proof of dispatch.token: do the tokens differ?"
            self._warn("protocol_error", code=TokenRefused.code, problem=problem)
        held, self.held = list(self.held), {}
        self._allowed = 0
        self._owner.lost(self, held)
        if not self.closed.done():
            self.closed.set_result(None)

    # Inside -------------------------------------------------------------------------------

    def _greet(self, greeting: Greeting) -> None:
        if not self.greeted:
            self.greeted = True
            self._restart_timer(self._terms.heartbeat_s, self._beat)
            self._log.info("worker_connected", window=greeting.window)
        self.leaving = False
        self.consumer = greeting.consumer_id or self.address
        self.completes = greeting.completes
        self._open(greeting.window or self._terms.window)

    def _open(self, window: int) -> None:
        self._window = self._allowed = window
        self._owner.has_space()

    def _no_hello(self) -> None:
        """A worker of another make: plain frames, and no sign of life to wait for."""
        if self._side.trusted:
            self._log.info("worker_connected", window=self._terms.window, greeted=False)
            self._open(self._terms.window)
        else:
            # It has to prove that it knows the token first.
            self._restart_timer(security.HANDSHAKE_S_MAX, self._no_proof)

    def _no_proof(self) -> None:
        self._refuse(security.proof_missing())

    def _refuse(self, error: FrameInvalid) -> None:
        self._counts.protocol_errors += 1
        self._said_why = True
        self._warn("protocol_error", code=error.code, problem=str(error))
        self.answer(farewell(error))
        self.close()

    def _warn(self, event: str, **values: Any) -> None:
        """Such a worker is dialled again for as long as it is listed."""
        self._warnings.warn(event, self.address, consumer=self.address, **values)

    def _beat(self) -> None:
        assert self._transport is not None
        # Beats are counted, not seconds: when this process was paused itself, what workers sent
        # meanwhile waits to be read behind this timer.
        self._silent_beats = 0 if self._heard else self._silent_beats + 1
        self._heard = False
        if self._silent_beats >= SILENT_BEATS_MAX:
            self._log.warning("worker_silent", beats=self._silent_beats)
            self._transport.abort()
            return
        if not self._paused:
            self._transport.write(heartbeat())
        self._restart_timer(self._terms.heartbeat_s, self._beat)

    def _restart_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, call)


class Links:
    """All links of this dispatcher, in the order of their turns."""

    def __init__(
        self, terms: LinkTerms, owner: LinkOwner, counts: DispatcherCounts, clock: Clock
    ) -> None:
        self._terms = terms
        self._owner = owner
        self._counts = counts
        self._clock = clock
        self.warnings = RepeatedWarnings(log.logger("angarium.dispatch"), clock)
        self._links: list[Link] = []
        self._turn = 0
        self._wanted: frozenset[str] = frozenset()
        self._dialling: dict[str, asyncio.Task[None]] = {}

    @property
    def space(self) -> int:
        return sum(link.space for link in self._links)

    @property
    def links(self) -> Sequence[Link]:
        return self._links

    def deal(self, messages: Sequence[Message], avoid: Sequence[Link | None] = ()) -> int:
        """Send as many as have space, in order, each to the next link; how many that were.

        `avoid` names for each message the link that had it last: another one gets it, unless
        there is no other.
        """
        links = [link for link in self._links if link.space > 0]
        if not links:
            return 0
        share = -(-len(messages) // len(links))
        if not avoid and min(link.space for link in links) >= share:
            turn = self._turn % len(links)
            for i, link in enumerate((*links[turn:], *links[:turn])):
                if part := messages[i :: len(links)]:
                    link.send(part)
            self._turn = turn + len(messages)
            return len(messages)
        return self._deal_singly(messages, avoid, links)

    def _deal_singly(
        self, messages: Sequence[Message], avoid: Sequence[Link | None], links: list[Link]
    ) -> int:
        space = {link: link.space for link in links}
        parts: dict[Link, list[Message]] = {link: [] for link in links}
        dealt = 0
        for i, message in enumerate(messages):
            last = avoid[i] if avoid else None
            link = self._next(links, space, last) or self._next(links, space, None)
            if link is None:
                break
            parts[link].append(message)
            space[link] -= 1
            dealt += 1
        for link, part in parts.items():
            if part:
                link.send(part)
        return dealt

    def _next(self, links: list[Link], space: dict[Link, int], avoid: Link | None) -> Link | None:
        for _ in links:
            link = links[self._turn % len(links)]
            self._turn += 1
            if link is not avoid and space[link] > 0:
                return link
        return None

    def forget(self, older_than_s: float) -> int:
        before_s = asyncio.get_running_loop().time() - older_than_s
        return sum(link.forget(before_s) for link in self._links)

    def holder(self, message_id: bytes) -> Link | None:
        return next((link for link in self._links if message_id in link.held), None)

    def answered_elsewhere(self, ids: Sequence[bytes]) -> list[bytes]:
        """Acknowledged at an ACK port: whoever was sent them has space for others. Returns those
        that no link of ours holds."""
        others = []
        for message_id in ids:
            link = self.holder(message_id)
            if link is not None:
                link.answered([message_id])
            else:
                others.append(message_id)
        return others

    def keep(self, addresses: Iterable[str], group: asyncio.TaskGroup) -> None:
        """Dial exactly these, from now on. A worker that stops has left the list and still works
        on what it has: its link is closed when it has answered for all of it."""
        self._wanted = frozenset(addresses)
        for address in sorted(self._wanted):
            task = self._dialling.get(address)
            if task is None or task.done():
                self._dialling[address] = group.create_task(self._keep_dialling(address))
        for link in self._links:
            self._retire(link)

    def _retire(self, link: Link) -> None:
        was_retired, link.retired = link.retired, link.address not in self._wanted
        if link.retired and not link.held:
            link.close()
        elif was_retired and not link.retired:
            self._owner.has_space()

    async def _keep_dialling(self, address: str) -> None:
        backoff = Backoff(base_s=0.05, ceiling_s=2.0)
        while address in self._wanted:
            link = await self._dial(address)
            if link is not None:
                self._links.append(link)
                self._retire(link)
                began_s = self._clock.monotonic()
                try:
                    await asyncio.shield(link.closed)
                finally:
                    self._links.remove(link)
                    link.close()
                if self._clock.monotonic() - began_s > 1.0:
                    backoff.reset()
            await self._clock.sleep(backoff.next_delay_s())
        del self._dialling[address]

    async def _dial(self, address: str) -> Link | None:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, link = await loop.create_connection(
                    lambda: Link(address, self._terms, self._owner, self._counts, self.warnings),
                    host.strip("[]"),
                    int(port),
                    ssl=self._terms.tls,
                    ssl_handshake_timeout=security.tls_deadline_s(self._terms.tls),
                )
        except (OSError, TimeoutError, ValueError, OverflowError):
            return None
        return link

    def close(self) -> None:
        self.warnings.flush(at_end=True)
        for task in list(self._dialling.values()):
            task.cancel()
        for link in self._links:
            link.close()
