"""Keys of the lake: who fills it, and which lakes there are."""

from __future__ import annotations

from angarium.runtime.keyspace import Key

LAKE_RUNNER = Key(
    "angarium:lake:{lake}",
    "string",
    meaning="Term and name of the process that fills the lake with this id; in the first partition "
    "only",
    expiry="15 s",
)
LAKE_RUNNER_TERM = Key(
    "angarium:lake-term:{lake}",
    "string",
    meaning="The last term given out to a process that fills this lake; only grows",
)
LAKES = Key(
    "angarium:lakes",
    "hash",
    meaning="Id of each lake that was ever filled from here → its address; in the first partition "
    "only",
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
