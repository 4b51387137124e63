"""Keys of the runtime: the layout record, the journal and the durability barrier."""

from __future__ import annotations

from functools import partial

from angarium.runtime.keys.key import Key, Scope

_runtime = partial(Key, module="runtime")

LAYOUT = _runtime(
    "angarium:layout",
    "hash",
    meaning="How this keyspace was laid out: `layout_version`, `partitions`, `prefix`, "
    "and what the roles run with: `durability`, `journal_bytes_max`",
    scope=Scope.KEYSPACE,
)
KEYSPACES = _runtime(
    "angarium:keyspaces",
    "set",
    meaning="The prefixes of all keyspaces on this server",
    scope=Scope.SERVER,
)
JOURNAL = _runtime(
    "journal",
    "stream",
    meaning="Events of every transition, one entry for each script call that changed something",
    expiry="trimmed behind the slowest reader; beyond `journal.bytes_max` also ahead of it",
)
JOURNAL_META = _runtime(
    "journal:meta",
    "hash",
    meaning="Counters of the journal: `events`, `bytes`, `dropped_events`, `dropped_entries`",
)
JOURNAL_READERS = _runtime(
    "journal:readers",
    "hash",
    meaning="Registered reader → id of the last entry it has committed",
)
FOLLOWER_LOCK = _runtime(
    "angarium:follower:{name}",
    "string",
    meaning="Term and name of the process that follows this partition's journal for two modules",
    expiry="5 s",
)
FOLLOWER_TERM = _runtime(
    "angarium:follower-term:{name}",
    "string",
    meaning="The last term given out to such a follower; only grows",
)
LAKE_RUNNER = _runtime(
    "angarium:lake:{lake}",
    "string",
    meaning="Term and name of the process that fills the lake with this id; in the first partition "
    "only",
    expiry="15 s",
)
LAKE_RUNNER_TERM = _runtime(
    "angarium:lake-term:{lake}",
    "string",
    meaning="The last term given out to a process that fills this lake; only grows",
)
LAKES = _runtime(
    "angarium:lakes",
    "hash",
    meaning="Id of each lake that was ever filled from here → its address; in the first partition "
    "only",
)
TOKENS = _runtime(
    "angarium:tokens",
    "hash",
    meaning="SHA-256 of a bearer token of the API → its name, scope and tenant; in the first "
    "partition only",
)
TOKENS_SEEN = _runtime(
    "angarium:tokens-seen",
    "hash",
    meaning="`api`, `gateway` → when it was first seen with a token; it stays closed when none is "
    "left; in the first partition only",
)
BARRIER = _runtime(
    "angarium:barrier",
    "string",
    meaning="Written behind a transition, so that waiting for the disk or a replica covers it",
)
PROCESSES = _runtime(
    "angarium:processes",
    "hash",
    meaning="Role and actor of each running process → when it last reported, and its figures; in "
    "the first partition only",
    expiry="a field goes 10 s after its last report, with the next report of any process",
)
