"""The composition point: lists the roles and builds their services.

A role's code is imported only when the role is requested. Modules never import one another; this
file connects them. The application's functions get clients of all modules on the runtime of their
process: a worker can start a transaction, and a step can reply in a conversation.
`reply_to_pickup.py` sends replies to pickup and acknowledges them when they are removed there.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from angarium.modules import MODULES
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.module import Role

if TYPE_CHECKING:
    from angarium.runtime.application import Application
    from angarium.runtime.service import Service
    from angarium.settings import Settings

# The server's own role, and roles whose service it replaces by one that connects two modules.
API = Role("api", "angarium.server.http")
CONNECTED_ROLES: Mapping[str, str] = MappingProxyType(
    {"conversations": "angarium.server.reply_to_pickup"}
)
# The roles that use the database, and refuse to start with another one than the installation's.
DATABASE_ROLES = frozenset({API.name, "conversations", "gateway", "archiver"})
# Roles that run the application's functions if it has some, and do something without them too.
FUNCTIONS_OPTIONAL = frozenset({"conversations"})
# Each file has `build(runtime, app)`, which returns the service, and `check(settings, app)`, which
# refuses invalid settings before Redis is used. Roles start in this order.
ROLES: Mapping[str, Role] = MappingProxyType(
    {role.name: role for role in (API, *(role for module in MODULES for role in module.roles))}
)


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """The names without repeats. Raises for an unknown role."""
    roles = tuple(dict.fromkeys(names))
    for name in roles:
        if name not in ROLES:
            problem = f"role {name!r} is not part of this version"
            raise SettingInvalid("serve", problem, f"roles: {', '.join(ROLES)}")
    return roles


def runnable(app: Application) -> tuple[str, ...]:
    """All roles whose functions this application has."""
    return tuple(
        name for name, role in ROLES.items() if role.needs is None or app.handlers(role.needs)
    )


def reloadable() -> tuple[str, ...]:
    """The roles that run functions of an application; the lake's jobs are Spark's."""
    return tuple(
        name for name, role in ROLES.items() if role.needs is not None or name in FUNCTIONS_OPTIONAL
    )


def application_of(settings: Settings) -> Application:
    """The application named in the settings, or one without functions."""
    from angarium.client.application import Angarium
    from angarium.runtime.application import load_application

    return load_application(settings.app) if settings.app else Angarium()


@asynccontextmanager
async def compose(
    names: Iterable[str], settings: Settings, app: Application | None = None
) -> AsyncIterator[Sequence[Service]]:
    """Build the services of the roles on one runtime, and close the runtime at the end."""
    from angarium.client.application import Angarium
    from angarium.runtime.runtime import Runtime

    if app is None:
        app = application_of(settings)
    names = checked(names)
    modules = [
        importlib.import_module(CONNECTED_ROLES.get(name, ROLES[name].path)) for name in names
    ]
    for module in modules:
        module.check(settings, app)
    async with Runtime.open(settings) as runtime:
        await runtime.record_options()
        if not DATABASE_ROLES.isdisjoint(names):
            from angarium.runtime.database.identity import check_database

            await check_database(runtime, records=not {"gateway", "archiver"}.isdisjoint(names))
        bound = app if isinstance(app, Angarium) else None
        if bound is not None:
            bound.bind(runtime)
        try:
            if runtime.tracing is not None:
                from angarium.server.traced import traced

                app = traced(app, runtime.tracing)
            yield [cast("Service", module.build(runtime, app)) for module in modules]
        finally:
            if bound is not None:
                await bound.unbind()
