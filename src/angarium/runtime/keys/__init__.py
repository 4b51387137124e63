"""Every key of every module, one file for each module; used through `runtime/keyspace.py`.

A module declares its keys in its own file here and nowhere else. This package only describes:
names are built by `Keyspace`.
"""

from angarium.runtime.keys.conversations import *  # noqa: F403
from angarium.runtime.keys.dispatch import *  # noqa: F403
from angarium.runtime.keys.key import Key
from angarium.runtime.keys.pickup import *  # noqa: F403
from angarium.runtime.keys.routing import *  # noqa: F403
from angarium.runtime.keys.runtime import *  # noqa: F403
from angarium.runtime.keys.transactions import *  # noqa: F403

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
