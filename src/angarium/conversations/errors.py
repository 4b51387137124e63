"""What can go wrong in a conversation, named by what happened.

    InputInvalid
    └── IdRefused              empty, too long, or it would spell another key of the room
    NotFound
    ├── RequestUnknown         never opened, or its time is over
    ├── ReplyUnknown           no such reply is in flight
    └── AckUnknown             nobody waits for that ACK (any more)
    Conflict
    ├── RequestTaken           the request id is in use in another conversation
    ├── ReplyTaken             the response id is in use for another request
    └── WrongConversation      the request belongs to another conversation
    Overloaded                 a conversation is full

Senders decide by what they raise: `Recoverable`, and the group is tried again; `Fatal`, and the
group is cancelled. Anything else is recoverable until the reply's time is over.
"""

from __future__ import annotations

from angarium.core.errors import AngariumError, Conflict, InputInvalid, NotFound


class IdRefused(InputInvalid):
    code = "id_refused"


class RequestUnknown(NotFound):
    code = "request_unknown"


class ReplyUnknown(NotFound):
    code = "reply_unknown"


class AckUnknown(NotFound):
    code = "ack_unknown"


class RequestTaken(Conflict):
    code = "request_taken"


class ReplyTaken(Conflict):
    code = "reply_taken"


class WrongConversation(Conflict):
    code = "wrong_conversation"


class Recoverable(AngariumError):
    """The client can't take it now: it is awaited, with its whole group."""

    code = "send_recoverable"


class Fatal(AngariumError):
    """The client will never take it: the whole group is cancelled."""

    code = "send_fatal"


class RetriesEnded(Recoverable):
    """It was checked as often as allowed, or stayed as long, and still could not go."""

    code = "retries_ended"
