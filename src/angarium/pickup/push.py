"""Push notifications for recipients who are away: scheduled in Redis, sent off the request path.

One is scheduled by the script that adds its message, so that it can't be lost. A token has one
notification to send at a time and gets one in each interval at most, whichever gateway sends it.
A try that failed is made again with a growing pause, a few times; a gateway that dies in the
middle leaves its claim to another. A notification says that there is mail, and carries no
payload. Senders for other services stand behind `Sender`.
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

from angarium.pickup.methods import PushToken
from angarium.pickup.store import PickupStore
from angarium.redis.backoff import Backoff
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, InputInvalid, SettingInvalid
from angarium.runtime.outbound import Outbound, OutboundFailed
from angarium.runtime.setting_groups.pickup import PickupSettings

TRIES_MAX = 6
RETRY_BASE_S = 1.0
RETRY_CEILING_S = 60.0
# Longer than any try takes: whoever claimed it and is silent for so long is dead.
CLAIM_MS = 30_000
SEND_TIMEOUT_S = 10.0
PUSHES_PER_PASS = 64
# The receiver will say the same next time; all else may pass.
HOPELESS = frozenset({400, 401, 403, 404, 405, 410, 413, 415, 422})


class Push(msgspec.Struct, frozen=True):
    """One notification. `url` stays with us."""

    token: str
    message_id: str
    type: str
    url: str


class Refused(Exception):
    """The sender says that this notification can never be sent."""


class Sender(Protocol):
    """Sends one notification; raises `Refused`, or anything else to be asked again later."""

    async def send(self, push: Push) -> None: ...


def make_sender(settings: PickupSettings) -> Sender:
    """The operator's own, or HTTP."""
    if settings.push_sender is None:
        return HttpSender()
    try:
        module, _, name = settings.push_sender.partition(":")
        sender: Sender = getattr(importlib.import_module(module), name)()
        if not inspect.iscoroutinefunction(sender.send):
            raise TypeError("its send is not async")
    except Exception as error:
        problem = f"{settings.push_sender!r} can't be used: {error!r}"
        hint = "name it as module:name, where Python can import it"
        raise SettingInvalid("ANGARIUM_PICKUP__PUSH_SENDER", problem, hint) from error
    return sender


async def close_sender(sender: Sender) -> None:
    """A sender that holds something open has a `close`."""
    close = getattr(sender, "close", None)
    if close is not None:
        await close()


class HttpSender:
    """POST of `{token, messageId, type}`. Its URLs are the operator's, so any address will do."""

    def __init__(self) -> None:
        self._outbound = Outbound(allow_private=True, timeout_s=SEND_TIMEOUT_S)

    async def send(self, push: Push) -> None:
        body = {"token": push.token, "messageId": push.message_id, "type": push.type}
        headers = {"content-type": "application/json"}
        answer = await self._outbound.send("POST", push.url, msgspec.json.encode(body), headers)
        if answer.status in HOPELESS:
            raise Refused(f"the notification sender answered {answer.status}")
        if not answer.ok:
            raise OutboundFailed(f"the notification sender answered {answer.status}")

    async def close(self) -> None:
        await self._outbound.close()


@dataclass(frozen=True)
class Pushed:
    """What one pass did."""

    sent: int = 0
    again: bool = False


class Notes:
    """Which notification a message has, by the operator's settings."""

    def __init__(self, settings: PickupSettings) -> None:
        # A sender of the operator's own knows where to send.
        self._url = settings.push_url or ("" if settings.push_sender else None)
        self._allowed: Sequence[str] = settings.push_allowed

    def push_for(self, token: PushToken | None, uri: str | None, message_id: str) -> Push | None:
        """The notification to send for a message, if any; a URI has to be on the list."""
        if uri is not None and uri not in self._allowed:
            raise InputInvalid("notificationUri is not one that the operator allows")
        url = self._url if uri is None else uri
        if token is None or not token.token or url is None:
            return None
        return Push(token.token, message_id, token.type, url)

    def note_for(self, token: PushToken | None, uri: str | None, message_id: str) -> bytes:
        """The same as a script keeps it: hashed token and note; empty if there is none."""
        push = self.push_for(token, uri, message_id)
        if push is None:
            return b""
        told = f"{push.url}\n{push.token}".encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(told).hexdigest()[:32]
        return digest.encode() + b" " + msgspec.json.encode(push)


class Pushes(Notes):
    def __init__(self, store: PickupStore, settings: PickupSettings, sender: Sender) -> None:
        super().__init__(settings)
        self._store = store
        self._interval_ms = settings.push_interval_ms
        self._sender = sender
        self._log = log.logger("angarium.pickup")
        self.sent = 0
        self.failed = 0

    async def run_once(self) -> Pushed:
        """Send what is due, in every partition."""
        sent, again = 0, False
        async with asyncio.TaskGroup() as group:
            for partition in self._store.partitions:
                found = await self._store.claim_pushes(partition, CLAIM_MS, PUSHES_PER_PASS)
                again = again or len(found) == PUSHES_PER_PASS
                for token, tries, note in found:
                    group.create_task(self._send(partition, token, tries, note))
                sent += len(found)
        return Pushed(sent, again)

    async def _send(self, partition: int, token: str, tries: int, note: bytes) -> None:
        push = msgspec.json.decode(note, type=Push)
        try:
            wait_ms = await self._store.grant_push(token)
            outcome, retry_ms = ("wait", wait_ms) if wait_ms else await self._try(push, tries)
            settle = self._store.settle_push
            await settle(partition, token, note, push.message_id, outcome, retry_ms, tries)
        except AngariumError as error:
            # It stays claimed, and is claimed again when that is over.
            self._log.warning("push_not_settled", id=push.message_id, error=repr(error))

    async def _try(self, push: Push, tries: int) -> tuple[str, int | None]:
        """One try: its outcome, and when the next one is due if it has to be."""
        outcome, retry_ms, problem = "pushed", None, ""
        try:
            await self._sender.send(push)
            self.sent += 1
        except Exception as error:
            problem = repr(error)
            if isinstance(error, Refused) or tries + 1 >= TRIES_MAX:
                outcome = "push_failed"
                self.failed += 1
            else:
                outcome = "retry"
                backoff = Backoff(RETRY_BASE_S, RETRY_CEILING_S, attempt=tries)
                # A try counts, even one that failed: the receiver may have passed it on.
                retry_ms = self._interval_ms + int(1000 * backoff.next_delay_s())
        if problem:
            self._log.warning("push_failed", id=push.message_id, outcome=outcome, error=problem)
        return outcome, retry_ms
