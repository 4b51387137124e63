"""Names of queues, and published messages of named channels.

`@app.worker("emails")` works on the queue `emails`; `@app.worker` on the unnamed queue, whose name
is the empty text. A message is for the queue that its sender names, or whose channel it was
published on. In the memory of a dispatcher a published message of a named queue is one text, the
queue in front of the payload, so that epochs and digests tell equal payloads of two queues apart.
"""

from __future__ import annotations

import re

from angarium.runtime.errors import InputInvalid

UNNAMED = ""
NAME_CHARACTERS_MAX = 64
# No zero byte and no @, which separate a queue from what follows.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
# The channel of this name carries the epoch markers.
RESERVED = "epochs"
_MARK = b"\0"


def is_queue_name(name: str) -> bool:
    return len(name) <= NAME_CHARACTERS_MAX and bool(_NAME.fullmatch(name)) and name != RESERVED


def check_queue_name(name: str) -> str:
    """The name. Raises InputInvalid if no queue can have it."""
    if name == UNNAMED or is_queue_name(name):
        return name
    raise InputInvalid(
        f"{name[:100]!r} can't be the name of a queue: use 1 to {NAME_CHARACTERS_MAX} letters, "
        f"digits, '_', '.' and '-', beginning with a letter or digit, and not {RESERVED!r}"
    )


def pack(queue: bytes, payload: bytes) -> bytes:
    """A payload of the unnamed queue stays as it is, unless it looks like a packed one."""
    if queue or payload[:1] == _MARK:
        return b"\0%b\0%b" % (queue, payload)
    return payload


def unpack(packed: bytes) -> tuple[str, bytes]:
    """Queue and payload."""
    if packed[:1] != _MARK:
        return UNNAMED, packed
    queue, _, payload = packed[1:].partition(_MARK)
    return queue.decode(), payload
