"""The limits of this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from angarium.runtime.limits import MIB, Limit, Limits


@dataclass(frozen=True)
class ConversationsLimits(Limits):
    conversation_requests_max: Annotated[
        int,
        Limit(
            "requests",
            "Requests of one conversation that wait for a reply. A client that sends requests "
            "faster than replies come gets an error.",
        ),
    ] = 100_000
    conversation_replies_max: Annotated[
        int,
        Limit(
            "replies",
            "Replies of one conversation that wait for each other. The cost per reply does not "
            "grow with their number, so this only limits memory.",
        ),
    ] = 1_000_000
    conversation_queue_replies_max: Annotated[
        int,
        Limit(
            "replies",
            "Replies in the memory queue of one process. At this number the process takes no more "
            "until some are sent; other processes take them.",
        ),
    ] = 10_000
    conversation_queue_bytes_max: Annotated[
        int,
        Limit(
            "bytes",
            "The same in bytes, for large replies. One fetch may exceed it by 8 MiB and one reply.",
        ),
    ] = 256 * MIB
    conversation_slow_sends_max: Annotated[
        int,
        Limit(
            "sends",
            "A send that takes longer than a second no longer counts against `concurrent`, so that "
            "a client that hangs does not delay others. This many sends may hang before they do.",
        ),
    ] = 500
