"""The one composition point: which roles this version has, and how they come together.

A role is a service made from the ground it stands on. Its module is imported only when the role
is asked for, so a process pays for what it runs. Rooms never import one another; where one needs
a callable of another, they are joined here.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from angarium.core.errors import SettingInvalid

if TYPE_CHECKING:
    from angarium.core.application import Angarium
    from angarium.core.service import Service
    from angarium.core.settings import Settings

# Role -> module, which offers `build(ground, app)`, the service, and `check(settings, app)`, which
# refuses what can be seen to fail before anything is touched. The order is the order of starting,
# so those that others lean on come first.
ROLES: Mapping[str, str] = MappingProxyType(
    {
        "api": "angarium.server.http",
    }
)
# Roles that run a user's functions, so that `up` without an application leaves them out.
NEED_AN_APPLICATION = frozenset({"worker", "node", "inbox"})


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """The roles asked for, each once; a name this version does not have is refused."""
    roles = tuple(dict.fromkeys(names))
    for name in roles:
        if name not in ROLES:
            problem = f"role {name!r} is not part of this version"
            raise SettingInvalid("serve", problem, f"roles: {', '.join(ROLES)}")
    return roles


@asynccontextmanager
async def compose(
    names: Iterable[str], settings: Settings, app: Angarium | None = None
) -> AsyncIterator[Sequence[Service]]:
    """The services of some roles on one ground, which is given back when they have stopped.

    The application is the one given, else the one the settings name, else one without functions.
    """
    from angarium.core.application import Angarium, load_application
    from angarium.core.ground import Ground

    if app is None:
        app = load_application(settings.app) if settings.app else Angarium()
    modules = [importlib.import_module(ROLES[name]) for name in checked(names)]
    for module in modules:
        module.check(settings, app)
    async with Ground.open(settings) as ground:
        yield [cast("Service", module.build(ground, app)) for module in modules]
