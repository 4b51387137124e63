"""A blocking connection to Redis, for Spark's executors and its driver.

It is opened inside a task and belongs to it alone. Commands leave together, replies come back in
order, and a server that is away is waited for: each command sent here is a read, or a script that
may be repeated, so that everything lost on the way is simply sent again. Single servers, clusters
and sentinels, with TLS and users. It knows nothing of streams or Spark.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Self, TypeVar, cast

import hiredis

from angarium.lake.errors import OptionInvalid
from angarium.runtime.address import Address
from angarium.runtime.errors import RedisUnavailable, ScriptFailed
from angarium.runtime.redis_url import RedisUrl, parse_redis_url
from angarium.runtime.scripts import Script
from angarium.runtime.topology import SLOTS, slot_of
from angarium.runtime.urls import redis_url_problem
from angarium.runtime.wire import Argument, Command, Credentials, ReplyError

pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)

CONNECT_S_MAX = 5.0
# One page of a stream may be many megabytes on a slow line; a server that is paused is noticed.
ANSWER_S_MAX = 60.0
# A minute's outage is ridden out with a margin; after that somebody has to look.
WAIT_S_MAX = 120.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 2.0
READ_BYTES = 1 << 20
REDIRECTIONS_MAX = 16
_Reply = TypeVar("_Reply")
_AWAY = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY ")


class _Lost(Exception):
    """The server went away, or is not ready: worth another try."""


class _Moved(Exception):
    """A cluster node does not serve this slot, or is handing it over."""


class _Socket:
    """One TCP or TLS connection that has introduced itself."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self.address = address
        self._reader = hiredis.Reader()
        try:
            plain = socket.create_connection((address.host, address.port), CONNECT_S_MAX)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise _Lost(f"no connection to Redis at {address}: {error}") from error
        context = credentials.tls
        try:
            self._socket = (
                context.wrap_socket(plain, server_hostname=address.host) if context else plain
            )
        except OSError as error:
            plain.close()
            raise _Lost(f"no connection to Redis at {address}: {error}") from error
        self._socket.settimeout(ANSWER_S_MAX)
        # The last command only names the connection: an ACL that forbids it does no harm.
        for reply in self.ask(credentials.handshake(address))[:-1]:
            if isinstance(reply, ReplyError):
                self.close()
                if str(reply).startswith(_AWAY):
                    raise _Lost(str(reply))
                problem = f"Redis at {address} refused the connection ({reply})"
                raise OptionInvalid("url", problem, "check user, password and database number")

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        try:
            self._socket.sendall(b"".join(pack(tuple(command)) for command in commands))
            return [self._reply() for _ in commands]
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise _Lost(f"connection to Redis at {self.address} lost: {error}") from error

    def _reply(self) -> Any:
        reader = self._reader
        while (reply := reader.gets()) is False:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("closed by the server")
            reader.feed(data)
        return reply

    def close(self) -> None:
        self._socket.close()


class Connection(AbstractContextManager["Connection"]):
    """Use as `with Connection(url) as redis:`. `wait_s` is how long an outage may last."""

    def __init__(self, url: str, *, wait_s: float = WAIT_S_MAX) -> None:
        problem = "it is empty" if not url else redis_url_problem(url)
        if problem or url == "embedded":
            fix = "use redis://host:6379, redis+cluster://… or redis+sentinel://…/primary"
            raise OptionInvalid("url", problem or "an embedded server has no fixed address", fix)
        self._url: RedisUrl = parse_redis_url(url)
        self._wait_s = wait_s
        self._credentials = Credentials(
            self._url.username,
            self._url.password,
            self._url.database,
            self._url.tls_context(),
            "angarium-lake",
        )
        self._sockets: dict[tuple[str, int], _Socket] = {}
        self._owners: list[Address | None] = [None] * SLOTS

    @property
    def clustered(self) -> bool:
        return self._url.kind == "cluster"

    def call(self, *command: Argument, key: str | bytes | None = None) -> Any:
        """One command; an error of Redis is raised."""
        (reply,) = self.ask([command], key=key)
        return reply

    def ask(self, commands: Sequence[Command], *, key: str | bytes | None = None) -> list[Any]:
        """Commands for the server of `key`, sent together; waits for a server that is away."""
        return self._patiently(lambda: self._ask_owner(commands, key))

    def _patiently(self, attempt: Callable[[], _Reply]) -> _Reply:
        give_up = time.monotonic() + self._wait_s
        pause_s = PAUSE_S_MIN
        redirections = 0
        while True:
            try:
                return attempt()
            except _Moved as moved:
                # The map is read anew; while a slot is on its way, that may take a few rounds.
                redirections += 1
                self._owners = [None] * SLOTS
                if redirections <= REDIRECTIONS_MAX:
                    continue
                problem: Exception = moved
            except _Lost as lost:
                problem = lost
            if time.monotonic() >= give_up:
                raise RedisUnavailable(f"{problem} (waited {self._wait_s:.0f} s)") from problem
            self._forget()
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(PAUSE_S_MAX, pause_s * 2)

    def _ask_owner(self, commands: Sequence[Command], key: str | bytes | None) -> list[Any]:
        try:
            return self._checked(self._socket_of(key).ask(commands))
        except _Moved as moved:
            if not str(moved).startswith("ASK "):
                raise
            # Some of the slot's keys are elsewhere already: this once, and without a new map.
            host, _, port = str(moved).split(" ")[2].rpartition(":")
        each = self._at(Address(host, int(port)))
        replies = each.ask([part for command in commands for part in (("ASKING",), command)])
        return self._checked(replies[1::2])

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """One call of a script that is safe to repeat."""
        assert script.repeatable, script.name
        try:
            return self.call(*script.evalsha(keys, args), key=keys[0])
        except ScriptFailed as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        return self.call(*script.eval(keys, args), key=keys[0])

    def nodes(self) -> list[Address]:
        """Every primary, for what must be asked of each."""
        if not self.clustered:
            return [self._url.addresses[0]]
        self.call("PING")
        return list(dict.fromkeys(owner for owner in self._owners if owner is not None))

    def at(self, node: Address, *command: Argument) -> Any:
        """One command to one of `nodes`."""
        if not self.clustered:
            return self.call(*command)
        return self._patiently(lambda: self._checked(self._at(node).ask([command]))[0])

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, ReplyError):
                _raise(str(reply))
        return replies

    def _forget(self) -> None:
        self.close()
        self._owners = [None] * SLOTS

    def _at(self, address: Address) -> _Socket:
        place = (address.host, address.port)
        if place not in self._sockets:
            self._sockets[place] = _Socket(address, self._credentials)
        return self._sockets[place]

    def _socket_of(self, key: str | bytes | None) -> _Socket:
        if self._url.kind == "sentinel":
            if not self._sockets:
                self._at(self._primary())
            return next(iter(self._sockets.values()))
        if not self.clustered:
            return self._at(self._url.addresses[0])
        slot = 0 if key is None else slot_of(key)
        owner = self._owners[slot]
        if owner is None:
            self._read_map()
            owner = self._owners[slot]
        if owner is None:
            raise _Lost(f"no cluster node serves slot {slot} at the moment")
        return self._at(owner)

    def _primary(self) -> Address:
        """Sentinels have users of their own; only the transport is shared with the servers."""
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.primary)
        for address in self._url.addresses:
            try:
                sentinel = _Socket(address, Credentials(tls=self._credentials.tls))
                (reply,) = sentinel.ask([question])
                sentinel.close()
            except _Lost:
                continue
            if isinstance(reply, list):
                return Address(reply[0].decode(), int(reply[1]))
        raise _Lost(f"no sentinel knows '{self._url.primary}'")

    def _read_map(self) -> None:
        for address in self._url.addresses:
            try:
                (ranges,) = self._at(address).ask([("CLUSTER", "SLOTS")])
            except _Lost:
                self._sockets.pop((address.host, address.port), None)
                continue
            if isinstance(ranges, ReplyError):
                problem = f"the server at {address} is not part of a cluster"
                raise OptionInvalid("url", problem, "use redis:// instead of redis+cluster://")
            for first, last, primary, *_ in ranges:
                host = primary[0].decode() if primary[0] else address.host
                owner = Address(host, int(primary[1]))
                self._owners[first : last + 1] = [owner] * (last + 1 - first)
            return
        raise _Lost("no cluster node answers")


def _raise(text: str) -> NoReturn:
    if text.startswith(("MOVED ", "ASK ")):
        raise _Moved(text)
    if text.startswith(_AWAY):
        raise _Lost(text)
    if text.startswith(("NOPERM", "NOAUTH", "WRONGPASS")):
        raise OptionInvalid("url", text, "check the user in the URL and what it may do")
    raise ScriptFailed(text)
