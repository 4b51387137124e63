"""The manifest of the runtime: what every installation has, whatever its modules."""

from __future__ import annotations

from angarium.runtime import keys
from angarium.runtime.module import Module, notes

RUNTIME = Module(
    "runtime",
    keys=keys.KEYS,
    events=tuple(notes("token_stored token_revoked")),
)
# Leases write their own events, whichever module holds them.
LEASE = Module("lease", events=tuple(notes("acquired released granted")))
