"""Who may call an operation: bearer tokens, their scopes, and the tenant they are bound to.

Everything is open where the API listens on loopback and no token has ever existed, except to pages
of other hosts in a browser; `ANGARIUM_ACCESS` can say otherwise. Else a caller needs a token, and
each operation says by its scope what the token has to allow. A token that is bound to a tenant
reaches only what can be told to be that tenant's: its queues in the pickup module, and the
transactions it owns; of others it learns nothing, not even that they exist.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from angarium.lake.filed import transactions_of
from angarium.runtime import log
from angarium.runtime.errors import AngariumError
from angarium.runtime.http_api import Handle, Operation, read_bytes
from angarium.runtime.origin_check import origin_problem
from angarium.runtime.runtime import Runtime
from angarium.runtime.sockets import is_loopback
from angarium.runtime.tokens import Token, TokenStore, digest, from_settings
from angarium.runtime.tokens_seen import TokensSeen
from angarium.settings import AccessMode
from angarium.transactions.client import Transactions
from angarium.transactions.errors import TransactionUnknown
from angarium.transactions.model import OWNER_DEFAULT

MAKE_ONE = "`angarium token create NAME --scope admin`"
# How soon a token that was made or revoked counts here.
LOOK_S = 2.0
# Operations in which the caller names the tenant, by the name of the parameter.
OF_TENANT = {"pickup_connection": "tenant", "pickup_drain": "tenant", "listTransactions": "owner"}
OF_OWNER = frozenset({"getTransaction", "cancelTransaction", "setSwitch", "followTransaction"})
STARTS = frozenset({"startTransaction", "startTransactions"})


class Unauthorized(AngariumError):
    code = "unauthorized"
    http_status = 401


class Forbidden(AngariumError):
    code = "forbidden"
    http_status = 403


class ForeignTenant(Forbidden):
    code = "tenant_foreign"


class _Owned(msgspec.Struct):
    owner: str = OWNER_DEFAULT


class _Batch(msgspec.Struct):
    transactions: list[_Owned] = []


class Access:
    """Knows the tokens; `run_once` every LOOK_S asks Redis for those that were made or revoked."""

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._fixed = from_settings([each.get_secret_value() for each in settings.http.tokens])
        self._loopback = is_loopback(settings.http.host)
        self._mode = settings.access
        self._store = TokenStore(runtime)
        self._seen = TokensSeen(runtime, "api")
        self._stored: Mapping[str, Token] = {}
        self._transactions = Transactions(runtime, lake_lookup=transactions_of(runtime.settings))
        self._body_bytes_max = settings.limits.http_body_bytes_max
        self._state = ""
        self._log = log.logger("angarium.access")

    async def run_once(self) -> int:
        """How many stored tokens there are."""
        self._stored = await self._store.all()
        await self._seen.look(has_tokens=self._has_tokens)
        state = "open" if self.open else "tokens" if self._has_tokens else "closed"
        if state != self._state:
            self._state = state
            if state == "closed":
                self._log.warning("no_tokens", access=self._mode, fix=MAKE_ONE)
            else:
                self._log.info("access", state=state, access=self._mode)
        return len(self._stored)

    async def close(self) -> None:
        await self._transactions.close()

    @property
    def open(self) -> bool:
        if self._mode is AccessMode.AUTO:
            return self._loopback and not self._has_tokens and not self._seen.ever
        return self._loopback and self._mode is AccessMode.OPEN

    @property
    def _has_tokens(self) -> bool:
        return bool(self._fixed or self._stored)

    def check(self, request: Request, scope: str) -> Token | None:
        """The caller's token, None where everything is open; or why not."""
        if self.open:
            told = request.headers
            refusal = origin_problem(told.get("host"), told.get("origin"))
            if refusal is not None:
                raise Forbidden(refusal)
            return None
        if not self._has_tokens:
            raise Unauthorized(f"a bearer token is needed, and there is none: {MAKE_ONE} makes one")
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthorized("a bearer token is needed: Authorization: Bearer …")
        # Looked up by its hash: how long that takes tells nothing of the token.
        hashed = digest(text.strip())
        token = self._fixed.get(hashed) or self._stored.get(hashed)
        if token is None:
            raise Unauthorized("the token is not known here")
        if not token.allows(scope):
            raise Forbidden(f"this needs the scope {scope!r}, and the token has {token.scope!r}")
        return token

    def check_whole(self, request: Request, scope: str) -> None:
        """For what is of no tenant, and no operation."""
        token = self.check(request, scope)
        if token is not None and token.tenant is not None:
            raise _not_of_one(token.tenant)

    def guarded(self, operation: Operation) -> Handle:
        async def handle(request: Request) -> Response:
            token = self.check(request, operation.scope)
            if token is not None and token.tenant is not None:
                await self._check_tenant(request, operation, token.tenant)
            response = await operation.handle(request)
            if isinstance(response, StreamingResponse):
                parts = response.body_iterator
                response.body_iterator = self._while_allowed(request, operation.scope, parts)
            return response

        return handle

    async def _while_allowed(
        self, request: Request, scope: str, parts: AsyncIterable[Any]
    ) -> AsyncIterator[Any]:
        """A stream that ends with the right to it: tokens are made and revoked while it lasts."""
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

    # Tenants

    async def _check_tenant(self, request: Request, operation: Operation, tenant: str) -> None:
        name = operation.name
        if name in OF_TENANT:
            if request.query_params.get(OF_TENANT[name]) != tenant:
                raise ForeignTenant(f"the token is for {tenant!r}: add {OF_TENANT[name]}={tenant}")
        elif name in OF_OWNER:
            id = request.path_params["id"]
            if (await self._transactions.get(id)).owner != tenant:
                # As if it were not there: a foreign id must tell nothing.
                raise TransactionUnknown(f"there is no transaction {id!r}")
        elif name in STARTS:
            await self._check_owners(request, operation, tenant)
        else:
            raise _not_of_one(tenant)

    async def _check_owners(self, request: Request, operation: Operation, tenant: str) -> None:
        body = await read_bytes(request, self._body_bytes_max)
        request._body = body  # the handler reads it again
        try:
            if operation.name == "startTransactions":
                owners = {
                    each.owner for each in msgspec.json.decode(body, type=_Batch).transactions
                }
            else:
                owners = {msgspec.json.decode(body, type=_Owned).owner}
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return  # the handler says what is wrong with it, and starts nothing
        if owners - {tenant}:
            raise ForeignTenant(f"the token is for {tenant!r}: give it as the owner")


def _not_of_one(tenant: str) -> ForeignTenant:
    return ForeignTenant(f"the token is for {tenant!r}, and this is not of one tenant")
