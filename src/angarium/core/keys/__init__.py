"""Every key of every room, one file for each room; used through `core/keyspace.py`.

A room declares its keys in its own file here and nowhere else. This package only describes:
names are built by `Keyspace`.
"""

from angarium.core.keys.conversations import *  # noqa: F403
from angarium.core.keys.dispatch import *  # noqa: F403
from angarium.core.keys.ground import *  # noqa: F403
from angarium.core.keys.key import Key
from angarium.core.keys.pickup import *  # noqa: F403
from angarium.core.keys.routing import *  # noqa: F403
from angarium.core.keys.transactions import *  # noqa: F403

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
