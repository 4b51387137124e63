"""Tenant rules of HTTP operations: which requests a token of one tenant may make.

An operation declares its rule. One without a rule shows or changes data of all tenants, and a
token of a tenant is refused; so a new operation is closed to tenants until it has a rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from angarium.runtime.errors import Forbidden, InputInvalid

TenantRule = Callable[[Request, str], Awaitable[None]]
"""Raises when the request is not about the tenant's own data."""


class ForeignTenant(Forbidden):
    code = "tenant_foreign"


async def all_tenants(_: Request, tenant: str) -> None:
    """The rule of an operation that declares none."""
    raise ForeignTenant(f"the token is for {tenant!r}, and this shows data of all tenants")


def by_query(name: str) -> TenantRule:
    """The query parameter `name` must be the tenant."""

    async def check(request: Request, tenant: str) -> None:
        if request.query_params.get(name) != tenant:
            raise ForeignTenant(f"the token is for {tenant!r}: add {name}={tenant}")

    return check


def by_body(
    read: Callable[[Request], Awaitable[bytes]], owners_of: Callable[[bytes], set[str]]
) -> TenantRule:
    """The owners in the body must be the tenant. The handler gets the same body again."""

    async def check(request: Request, tenant: str) -> None:
        request._body = await read(request)
        try:
            owners = owners_of(request._body)
        except InputInvalid:
            return  # the handler refuses this body with a precise error
        if owners - {tenant}:
            raise ForeignTenant(f"the token is for {tenant!r}: give it as the owner")

    return check
