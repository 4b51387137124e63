"""Keys of the runtime: the layout record, the journal and the durability barrier."""

from __future__ import annotations

from angarium.runtime.keyspace import Key, Scope

LAYOUT = Key(
    "angarium:layout",
    "hash",
    meaning="Layout of this keyspace (`layout_version`, `partitions`, `prefix`) and settings of "
    "the roles (`durability`, `journal_bytes_max`, `journal_full`); id and place of the `database`",
    scope=Scope.KEYSPACE,
)
KEYSPACES = Key(
    "angarium:keyspaces",
    "set",
    meaning="The prefixes of all keyspaces on this server",
    scope=Scope.SERVER,
)
JOURNAL = Key(
    "journal",
    "stream",
    meaning="Events of all transitions, one entry for each script call that changed something",
    expiry="entries that all readers have committed; beyond `journal.bytes_max` also others",
)
JOURNAL_META = Key(
    "journal:meta",
    "hash",
    meaning="Counters of the journal: `events`, `bytes`, `dropped_events`, `dropped_entries`; "
    "how many `readers` it has; while it is `full`, the limit that was found so",
)
JOURNAL_READERS = Key(
    "journal:readers",
    "hash",
    meaning="Registered reader → id of the last entry it has committed",
)
FOLLOWER_LOCK = Key(
    "angarium:follower:{name}",
    "string",
    meaning="Term and name of the process that follows this partition's journal, such as the one "
    "that passes replies to pickup",
    expiry="5 s",
)
FOLLOWER_TERM = Key(
    "angarium:follower-term:{name}",
    "string",
    meaning="The last term of a follower; it only grows",
)
TOKENS = Key(
    "angarium:tokens",
    "hash",
    meaning="SHA-256 of a bearer token of the API → name, scope and tenant; in the first "
    "partition only",
)
TOKENS_SEEN = Key(
    "angarium:tokens-seen",
    "hash",
    meaning="`api` or `gateway` → time when it first had a token; from then on every request needs "
    "a token, also if none is left; in the first partition only",
)
BARRIER = Key(
    "angarium:barrier",
    "string",
    meaning="Written after a transition, so that waiting for the disk or a replica covers it",
)
PROCESSES = Key(
    "angarium:processes",
    "hash",
    meaning="Role and actor of each running process → time of its last report, and the report; in "
    "the first partition only",
    expiry="a field that is older than 10 s is removed when a new process first reports",
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
