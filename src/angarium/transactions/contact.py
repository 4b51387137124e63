"""Whether a node may judge the silence of others.

Pure: times in, a verdict out. When Redis was away, stood still, or its clock jumped, every node
looks silent to the first that comes back. Whoever noticed such a gap in its own signs of life
leaves the others alone until they had time for theirs.
"""

from __future__ import annotations

# Of the time-out, between two of our own signs of life. They come four to a time-out; with more
# than this between them, those of others may be as late without anyone having died.
GAP_SHARE_MAX = 0.75


class Contact:
    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._last_ms: int | None = None
        self._gap_ms: int | None = None

    def touched(self, now_ms: int) -> bool:
        """Our sign of life arrived at this time of Redis; may we judge the others?"""
        last_ms, self._last_ms = self._last_ms, now_ms
        if last_ms is not None and not 0 <= now_ms - last_ms <= GAP_SHARE_MAX * self._timeout_ms:
            self._gap_ms = now_ms
        return self._gap_ms is None or now_ms - self._gap_ms >= self._timeout_ms
