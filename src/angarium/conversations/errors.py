"""The errors of conversations.

    InputInvalid
    └── IdRefused              empty, too long, or spells another key of the module
    NotFound
    ├── RequestUnknown         never opened, or expired
    ├── ReplyUnknown           the reply is not in flight
    └── AckUnknown             no reply waits for this ACK
    Conflict
    ├── RequestTaken           the request id is in use in another conversation
    ├── ReplyTaken             the response id is in use for another request
    └── WrongConversation      the request belongs to another conversation
    Overloaded                 a conversation is full

A sender raises `Recoverable` to have all replies of the request tried again, and `Fatal` to have
them cancelled. Any other exception counts as recoverable until the reply expires.
"""

from __future__ import annotations

from angarium.runtime.errors import AngariumError, Conflict, InputInvalid, NotFound
from angarium.runtime.text import valid_text

# Length of an error's text in the journal and in the log.
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
    """The client can't take the reply now: all replies of its request are awaited."""

    code = "send_recoverable"


class Fatal(AngariumError):
    """The client will never take the reply: all replies of its request are cancelled."""

    code = "send_fatal"


class RetriesEnded(Recoverable):
    """A task used up its checks or its time in the memory queue before it could be sent."""

    code = "retries_ended"


def error_text(error: BaseException) -> str:
    """The text of a user function's error as valid Unicode; its class name if it has none."""
    try:
        text = str(error)
    except Exception as worse:  # the exception's own code failed
        text = f"its text can't be read: {type(worse).__name__}"
    return valid_text(text or type(error).__name__)[:WHY_CHARS_MAX]
