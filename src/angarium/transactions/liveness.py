"""Decides whether this node may declare other nodes dead.

No I/O: Redis times come in, a decision goes out. After Redis was unreachable, stood still or had
its clock changed, every node looks silent to the first one that reconnects. A node that sees such a
gap between its own heartbeats therefore waits one time-out before it judges others.
"""

from __future__ import annotations

# The largest gap between two of our heartbeats, as a share of the time-out. A node sends four per
# time-out. After a larger gap, the heartbeats of other nodes may be late although the nodes live.
GAP_SHARE_MAX = 0.75


class LivenessCheck:
    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._last_ms: int | None = None
        self._gap_ms: int | None = None

    def heartbeat(self, now_ms: int) -> bool:
        """Record our heartbeat at this Redis time. True if this node may declare others dead."""
        last_ms, self._last_ms = self._last_ms, now_ms
        if last_ms is not None and not 0 <= now_ms - last_ms <= GAP_SHARE_MAX * self._timeout_ms:
            self._gap_ms = now_ms
        return self._gap_ms is None or now_ms - self._gap_ms >= self._timeout_ms
