"""Push notifications for offline recipients: scheduled in Redis, sent outside of requests.

The script that adds a message also schedules its notification, so neither exists without the other.
Each token has at most one scheduled notification, and gets at most one in each interval from all
gateways together. A failed try is repeated a few times after growing pauses. If a gateway dies
during a try, another gateway claims the notification. A notification contains no payload. Classes
with the interface of `PushSender` replace HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from angarium.pickup.model import PushToken
from angarium.pickup.settings import PickupSettings
from angarium.pickup.store import PickupStore
from angarium.redis.backoff import Backoff
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, InputInvalid, SettingInvalid
from angarium.runtime.outbound import Outbound, OutboundFailed

TRIES_MAX = 6
RETRY_BASE_S = 1.0
RETRY_CEILING_S = 60.0
# Longer than any try: a claim this old belongs to a dead gateway.
CLAIM_MS = 30_000
SEND_TIMEOUT_S = 10.0
PUSHES_PER_PASS = 64
# The receiver would answer a repeated try in the same way.
PERMANENT_FAILURES = frozenset({400, 401, 403, 404, 405, 410, 413, 415, 422})


class Push(msgspec.Struct, frozen=True):
    """One notification. `url` is where it goes; it is not part of the body."""

    token: str
    message_id: str
    type: str
    url: str


class PushRefused(Exception):
    """The notification can never be sent, so it is not tried again."""


# The name in 0.1.0, which senders of operators may import.
Refused = PushRefused


class PushSender(Protocol):
    """Sends one notification. `PushRefused` is final; any other exception means a later try."""

    async def send(self, push: Push) -> None: ...


def make_sender(settings: PickupSettings) -> PushSender:
    """The class that the operator names, or HTTP."""
    if settings.push_sender is None:
        return HttpPushSender()
    try:
        module, _, name = settings.push_sender.partition(":")
        sender: PushSender = getattr(importlib.import_module(module), name)()
        if not inspect.iscoroutinefunction(sender.send):
            raise TypeError("its send is not async")
    except Exception as error:
        problem = f"{settings.push_sender!r} can't be used: {error!r}"
        hint = "name it as module:name, where Python can import it"
        raise SettingInvalid("ANGARIUM_PICKUP__PUSH_SENDER", problem, hint) from error
    return sender


async def close_sender(sender: PushSender) -> None:
    """`close` is an optional method of a sender."""
    close = getattr(sender, "close", None)
    if close is not None:
        await close()


class HttpPushSender:
    """POST of `{token, messageId, type}`. The operator sets the URLs, so private addresses are
    allowed."""

    def __init__(self) -> None:
        self._outbound = Outbound(allow_private=True, timeout_s=SEND_TIMEOUT_S)

    async def send(self, push: Push) -> None:
        body = {"token": push.token, "messageId": push.message_id, "type": push.type}
        headers = {"content-type": "application/json"}
        answer = await self._outbound.send("POST", push.url, msgspec.json.encode(body), headers)
        if answer.status in PERMANENT_FAILURES:
            raise PushRefused(f"the notification sender answered {answer.status}")
        if not answer.ok:
            raise OutboundFailed(f"the notification sender answered {answer.status}")

    async def close(self) -> None:
        await self._outbound.close()


@dataclass(frozen=True)
class PushResult:
    """`again`: there is more to send at once."""

    sent: int = 0
    again: bool = False


class PushScheduler:
    """Builds the notification of a message from the operator's settings."""

    def __init__(self, settings: PickupSettings) -> None:
        # A sender that the operator names needs no URL.
        self._url = settings.push_url or ("" if settings.push_sender else None)
        self._allowed: Sequence[str] = settings.push_allowed

    def push_for(self, token: PushToken | None, uri: str | None, message_id: str) -> Push | None:
        """The notification of a message, if it has one. The operator has to allow the URI."""
        if uri is not None and uri not in self._allowed:
            raise InputInvalid("notificationUri is not one that the operator allows")
        url = self._url if uri is None else uri
        if token is None or not token.token or url is None:
            return None
        return Push(token.token, message_id, token.type, url)

    def encoded_push(self, token: PushToken | None, uri: str | None, message_id: str) -> bytes:
        """The argument of a script: hashed token, space, push; empty without a notification."""
        push = self.push_for(token, uri, message_id)
        if push is None:
            return b""
        recipient = f"{push.url}\n{push.token}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(recipient).hexdigest()[:32]
        return digest.encode() + b" " + msgspec.json.encode(push)


class PushWorker(PushScheduler):
    def __init__(self, store: PickupStore, settings: PickupSettings, sender: PushSender) -> None:
        super().__init__(settings)
        self._store = store.pushes
        self._partitions = store.partitions
        self._interval_ms = settings.push_interval_ms
        self._sender = sender
        self._log = log.logger("angarium.pickup")
        self.sent = 0
        self.failed = 0

    async def run_once(self) -> PushResult:
        """Send the notifications that are due, in every partition."""
        sent, again = 0, False
        async with asyncio.TaskGroup() as group:
            for partition in self._partitions:
                found = await self._store.claim(partition, CLAIM_MS, PUSHES_PER_PASS)
                again = again or len(found) == PUSHES_PER_PASS
                for token, tries, encoded in found:
                    group.create_task(self._send(partition, token, tries, encoded))
                sent += len(found)
        return PushResult(sent, again)

    async def _send(self, partition: int, token: str, tries: int, encoded: bytes) -> None:
        push = msgspec.json.decode(encoded, type=Push)
        try:
            wait_ms = await self._store.grant(token)
            outcome, retry_ms = ("wait", wait_ms) if wait_ms else await self._try(push, tries)
            await self._store.settle(
                partition, token, encoded, push.message_id, outcome, retry_ms, tries
            )
        except AngariumError as error:
            # The notification is claimed again when this claim is over.
            self._log.warning("push_not_settled", id=push.message_id, error=repr(error))

    async def _try(self, push: Push, tries: int) -> tuple[str, int | None]:
        """The outcome of one try, and the pause before the next one."""
        outcome, retry_ms, problem = "pushed", None, ""
        try:
            await self._sender.send(push)
            self.sent += 1
        except Exception as error:
            problem = repr(error)
            if isinstance(error, PushRefused) or tries + 1 >= TRIES_MAX:
                outcome = "push_failed"
                self.failed += 1
            else:
                outcome = "retry"
                backoff = Backoff(RETRY_BASE_S, RETRY_CEILING_S, attempt=tries)
                # The receiver of a failed try may have forwarded it, so the interval counts.
                retry_ms = self._interval_ms + int(1000 * backoff.next_delay_s())
        if problem:
            self._log.warning("push_failed", id=push.message_id, outcome=outcome, error=problem)
        return outcome, retry_ms
