"""The one composition point: which roles this version has, and how they come together.

A role is a service made from the runtime it stands on. Its module is imported only when the role
is asked for, so a process pays for what it runs. Modules never import one another; they are
joined here: the application's functions get clients of all modules on the runtime of their
process, so that a worker starts a transaction and a step replies into a conversation, and
`reply_to_pickup.py` leads replies to pickup and their removal back.
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
    from angarium.runtime.application import Angarium
    from angarium.runtime.service import Service
    from angarium.settings import Settings

# What the server adds to the modules: the API itself, and conversations whose replies go to pickup.
API = Role("api", "angarium.server.http")
JOINED: Mapping[str, str] = MappingProxyType({"conversations": "angarium.server.reply_to_pickup"})
# Each file offers `build(runtime, app)`, the service, and `check(settings, app)`, which refuses
# what can be seen to fail before anything is touched. The order is the order of starting.
ROLES: Mapping[str, Role] = MappingProxyType(
    {role.name: role for role in (API, *(role for module in MODULES for role in module.roles))}
)


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """The roles asked for, each once; a name this version does not have is refused."""
    roles = tuple(dict.fromkeys(names))
    for name in roles:
        if name not in ROLES:
            problem = f"role {name!r} is not part of this version"
            raise SettingInvalid("serve", problem, f"roles: {', '.join(ROLES)}")
    return roles


def runnable(app: Angarium) -> tuple[str, ...]:
    """All roles but those whose functions this application does not have."""
    return tuple(
        name for name, role in ROLES.items() if role.needs is None or app.handlers(role.needs)
    )


def application_of(settings: Settings) -> Angarium:
    """The application the settings name, else one without functions."""
    from angarium.client.application import Angarium
    from angarium.runtime.application import load_application

    return load_application(settings.app) if settings.app else Angarium()


@asynccontextmanager
async def compose(
    names: Iterable[str], settings: Settings, app: Angarium | None = None
) -> AsyncIterator[Sequence[Service]]:
    """The services of some roles on one runtime, which is given back when they have stopped.

    The application is the one given, else that of the settings.
    """
    from angarium.client.application import Angarium
    from angarium.runtime.runtime import Runtime

    if app is None:
        app = application_of(settings)
    modules = [
        importlib.import_module(JOINED.get(name, ROLES[name].path)) for name in checked(names)
    ]
    for module in modules:
        module.check(settings, app)
    async with Runtime.open(settings) as runtime:
        await runtime.record_options()
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
