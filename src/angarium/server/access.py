"""Checks callers of the API: bearer tokens, their scopes and tenants.

The API is open if it listens on loopback and no token has ever existed, except to pages of other
hosts in a browser; `ANGARIUM_ACCESS` overrides this. Otherwise a caller needs a token with the
operation's scope. A token of a tenant may make only the requests that the operation's tenant rule
allows (`runtime/tenants.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from angarium.runtime import log
from angarium.runtime.errors import AngariumError, Forbidden
from angarium.runtime.http_api import Handle, Operation
from angarium.runtime.origin_check import origin_problem
from angarium.runtime.runtime import Runtime
from angarium.runtime.sockets import is_loopback
from angarium.runtime.tenants import all_tenants
from angarium.runtime.tokens import Token, TokensSeen, TokenStore, digest, from_settings
from angarium.settings import AccessMode

CREATE_TOKEN = "`angarium token create NAME --scope admin`"
# A created or revoked token takes effect within this time.
TOKEN_READ_INTERVAL_S = 2.0


class Unauthorized(AngariumError):
    code = "unauthorized"
    http_status = 401


class Access:
    """Holds all tokens. `run_once` reads them from Redis every TOKEN_READ_INTERVAL_S."""

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._fixed = from_settings([each.get_secret_value() for each in settings.http.tokens])
        self._loopback = is_loopback(settings.http.host)
        self._mode = settings.access
        self._store = TokenStore(runtime)
        self._seen = TokensSeen(runtime, "api")
        self._stored: Mapping[str, Token] = {}
        self._ever = False
        self._state = ""
        self._log = log.logger("angarium.access")

    async def run_once(self) -> int:
        """Returns the number of stored tokens.

        Both reads take effect together: a request between them is judged by the old state, not by
        the new half of it, which would refuse a token that has just been created.
        """
        stored = await self._store.all()
        try:
            if await self._seen.look(has_tokens=bool(self._fixed or stored)) and not stored:
                # The first token may have been stored between the two reads.
                stored = await self._store.all()
        finally:
            # Also if Redis has no room to remember it: a revoked token must not stay valid.
            self._stored, self._ever = stored, self._seen.ever
        state = "open" if self.open else "tokens" if self._has_tokens else "closed"
        if state != self._state:
            self._state = state
            if state == "closed":
                self._log.warning("no_tokens", access=self._mode, fix=CREATE_TOKEN)
            else:
                self._log.info("access", state=state, access=self._mode)
        return len(self._stored)

    @property
    def open(self) -> bool:
        if self._mode is AccessMode.AUTO:
            return self._loopback and not self._has_tokens and not self._ever
        return self._loopback and self._mode is AccessMode.OPEN

    @property
    def _has_tokens(self) -> bool:
        return bool(self._fixed or self._stored)

    def check(self, request: Request, scope: str) -> Token | None:
        """Returns the caller's token, or None if the API is open. Raises if the call is refused."""
        if self.open:
            refusal = origin_problem(request.headers)
            if refusal is not None:
                raise Forbidden(refusal)
            return None
        if not self._has_tokens:
            raise Unauthorized(f"a bearer token is needed; none exists: {CREATE_TOKEN} makes one")
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthorized("a bearer token is needed: Authorization: Bearer …")
        # Looked up by hash, so that the time taken reveals nothing about the token.
        hashed = digest(text.strip())
        token = self._fixed.get(hashed) or self._stored.get(hashed)
        if token is None:
            raise Unauthorized("the token is not known")
        if not token.allows(scope):
            raise Forbidden(f"this needs the scope {scope!r}, and the token has {token.scope!r}")
        return token

    async def check_without_tenant(self, request: Request, scope: str) -> None:
        """For pages that are not operations and show data of all tenants."""
        token = self.check(request, scope)
        if token is not None and token.tenant is not None:
            await all_tenants(request, token.tenant)

    def guarded(self, operation: Operation) -> Handle:
        async def handle(request: Request) -> Response:
            token = self.check(request, operation.scope)
            if token is not None and token.tenant is not None:
                await operation.tenant(request, token.tenant)
            response = await operation.handle(request)
            if isinstance(response, StreamingResponse):
                parts = response.body_iterator
                response.body_iterator = self._while_allowed(request, operation.scope, parts)
            return response

        return handle

    async def _while_allowed(
        self, request: Request, scope: str, parts: AsyncIterable[Any]
    ) -> AsyncIterator[Any]:
        """End the stream when the caller is no longer allowed: tokens change while it lasts."""
        try:
            async for part in parts:
                try:
                    self.check(request, scope)
                except AngariumError:
                    return
                yield part
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
