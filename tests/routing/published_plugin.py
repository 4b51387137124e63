"""An instance and a relay that speak the published encodings, on redis-py and nothing of ours.

Each step is one command, as there: they share a Redis with ours and must be understood.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any


def read_keys(encoded: bytes | None) -> list[str]:
    if not encoded:
        return []
    padded = encoded + b"=" * (-len(encoded) % 4)
    found = json.loads(base64.urlsafe_b64decode(padded).decode())
    assert isinstance(found, list)
    return found


def write_keys(recip_keys: list[str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(recip_keys).encode("utf-8")).decode()


class PublishedInstance:
    def __init__(self, client: Any, prefix: str, uid: str) -> None:
        self._client = client
        self._prefix = prefix
        self.uid = uid

    def register(self) -> None:
        self._client.hset(f"{self._prefix}uid_recip_keys_map", self.uid, write_keys([]))

    def owned(self) -> list[str]:
        return read_keys(self._client.hget(f"{self._prefix}uid_recip_keys_map", self.uid))

    def last_access(self) -> datetime:
        value = self._client.hget(f"{self._prefix}uid_last_access_map", self.uid)
        at = datetime.strptime(value.decode(), "%Y-%m-%dT%H:%M:%SZ")
        return at.replace(tzinfo=UTC)

    def pending(self, key: str) -> int:
        field = f"{self.uid}_{key}"
        return int(self._client.hget(f"{self._prefix}uid_recip_key_pending_msg_count", field))

    def pop(self, now: datetime) -> list[dict[str, Any]]:
        """One round over its keys: pop, say that it lives, count down."""
        found = []
        for key in self.owned():
            popped = self._client.blpop(f"{self._prefix}acapy_inbound_{key}", 0.05)
            if popped is None:
                continue
            found.append(json.loads(popped[1]))
            stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
            self._client.hset(f"{self._prefix}uid_last_access_map", self.uid, stamp)
            counts, field = f"{self._prefix}uid_recip_key_pending_msg_count", f"{self.uid}_{key}"
            count = int(self._client.hget(counts, field) or 0)
            if count >= 1:
                self._client.hset(counts, field, count - 1)
        return found


def publish(client: Any, prefix: str, key: str, payload: bytes) -> None:
    """A relay's last two steps, for a key that has an owner."""
    uid = client.hget(f"{prefix}recip_key_uid_map", key).decode()
    client.hincrby(f"{prefix}uid_recip_key_pending_msg_count", f"{uid}_{key}", 1)
    encoded = base64.urlsafe_b64encode(payload).decode()
    item = json.dumps({"payload": encoded, "transport_type": "http"})
    client.rpush(f"{prefix}acapy_inbound_{key}", str.encode(item))
