"""What can go wrong in a conversation, named by what happened.

    InputInvalid
    └── IdRefused              empty, too long, or it would spell another key of the module
    NotFound
    ├── RequestUnknown         never opened, or its time is over
    ├── ReplyUnknown           no such reply is in flight
    └── AckUnknown             nobody waits for that ACK (any more)
    Conflict
    ├── RequestTaken           the request id is in use in another conversation
    ├── ReplyTaken             the response id is in use for another request
    └── WrongConversation      the request belongs to another conversation
    Overloaded                 a conversation is full

A sender decides by what it raises: `Recoverable`, and the group is tried again; `Fatal`, and the
group is cancelled. Anything else is recoverable until the reply's time is over.
"""

from __future__ import annotations

from angarium.runtime.errors import AngariumError, Conflict, InputInvalid, NotFound
from angarium.runtime.text import valid_text

# Of an error's text, in the journal and in the log.
WHY_CHARS_MAX = 200


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


def error_text(error: BaseException) -> str:
    """What an error of a user's function says, fit to be stored; its class if it says nothing."""
    try:
        text = str(error)
    except Exception as worse:  # its own code failed
        text = f"its text can't be read: {type(worse).__name__}"
    return valid_text(text or type(error).__name__)[:WHY_CHARS_MAX]
