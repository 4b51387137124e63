"""The manifest of the runtime: what every installation has, whatever its modules."""

from __future__ import annotations

from angarium.runtime import keys
from angarium.runtime.module import Module, other_events

RUNTIME = Module(
    "runtime",
    keys=keys.KEYS,
    events=tuple(other_events("token_stored token_revoked")),
)
# Leases write their own events, whichever module holds them.
LEASE = Module("lease", events=tuple(other_events("acquired released")))
