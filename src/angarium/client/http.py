"""Sends messages and reads their results over the HTTP API, where Redis can't be reached.

    async with HttpClient("https://angarium.example", token="…") as client:
        sent = await client.enqueue({"name": "Xerxes"})
        state = await client.result(sent.message_id, wait_s=30)

A reply of the API that is an error is raised as `ApiError`, with the API's stable `code`.
"""

from __future__ import annotations

import time
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from angarium.client.client import NotOpened
from angarium.client.dispatch import encoded
from angarium.dispatch.message_state import MessageState
from angarium.dispatch.store import Enqueued
from angarium.runtime.errors import AngariumError

# Below the API's limit of 60 s, so that a proxy's usual limit of a minute does not cut it.
WAIT_PER_REQUEST_S = 25.0
REPLY_S_MAX = 30.0


Reply = TypeVar("Reply")


class ApiError(AngariumError):
    """The API refused a request, or did not answer. `code` is that of the API's reply."""

    def __init__(self, code: str, status: int, detail: str) -> None:
        super().__init__(detail)
        # Of this refusal; other errors have those of their class.
        vars(self).update(code=code, http_status=status)


class HttpClient:
    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def enqueue(self, message: Any, *, idempotency_key: str | None = None) -> Enqueued:
        """Put a message into the durable intake. A used key adds nothing."""
        body: dict[str, Any] = {"payload": msgspec.Raw(encoded(message))}
        if idempotency_key is not None:
            body["idempotency_key"] = idempotency_key
        found = await self._request(_Sent, "POST", "/v1/messages", data=encoded(body))
        return Enqueued(found.message_id, found.duplicate)

    async def result(self, message_id: str, wait_s: float = 0) -> MessageState:
        """What became of a message, after waiting up to `wait_s` for its end."""
        until_s = time.monotonic() + wait_s
        path = f"/v1/messages/{quote(message_id, safe='')}"
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            part_s = min(left_s, WAIT_PER_REQUEST_S)
            params = {"wait_s": f"{part_s:.3f}"}
            state = await self._request(MessageState, "GET", path, params=params)
            if state.final or left_s <= WAIT_PER_REQUEST_S:
                return state

    async def _request(self, kind: type[Reply], method: str, path: str, **named: Any) -> Reply:
        if self._session is None:
            raise NotOpened("use `async with HttpClient(url) as client`")
        timeout = aiohttp.ClientTimeout(total=WAIT_PER_REQUEST_S + REPLY_S_MAX)
        try:
            async with self._session.request(
                method, self._url + path, timeout=timeout, **named
            ) as response:
                data = await response.read()
                if response.status >= 400:
                    raise _refusal(response.status, data)
                return msgspec.json.decode(data, type=kind)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ApiError(
                "api_unavailable", 503, f"{self._url} can't be reached: {what}"
            ) from None


class _Sent(msgspec.Struct):
    message_id: str
    duplicate: bool


class _Problem(msgspec.Struct):
    code: str = "api_error"
    detail: str = ""


def _refusal(status: int, data: bytes) -> ApiError:
    try:
        problem = msgspec.json.decode(data, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem()
    return ApiError(problem.code, status, problem.detail or f"the API answered {status}")
