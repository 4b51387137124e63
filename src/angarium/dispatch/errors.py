"""Errors of the dispatch module.

AngariumError
├── FrameInvalid           bytes that violate the worker protocol; the connection is closed
│   ├── VersionUnknown     the first byte of a frame is not 1
│   ├── CommandUnknown     the second byte is not a command of version 1
│   ├── FrameTooLarge      the frame is longer than `limits.frame_bytes_max`
│   ├── FrameMisplaced     this side does not accept the command, or not in this state
│   ├── PayloadInvalid     the payload does not have the format of the command
│   ├── TokenRefused       the other side did not prove that it knows the token
│   └── ConnectionSilent   the other side sent nothing for too long
├── Overloaded
│   └── InboxFull          the durable intake has as many messages as it may have
└── NotFound
    └── MessageUnknown     neither a queue nor the newest results have a message with this id
"""

from __future__ import annotations

from angarium.runtime.errors import AngariumError, NotFound, Overloaded


class FrameInvalid(AngariumError):
    code = "frame_invalid"
    http_status = 400


class VersionUnknown(FrameInvalid):
    code = "version_unknown"


class CommandUnknown(FrameInvalid):
    code = "command_unknown"


class FrameTooLarge(FrameInvalid):
    code = "frame_too_large"


class FrameMisplaced(FrameInvalid):
    code = "frame_misplaced"


class PayloadInvalid(FrameInvalid):
    code = "payload_invalid"


class TokenRefused(FrameInvalid):
    code = "token_refused"


class ConnectionSilent(FrameInvalid):
    code = "connection_silent"


class InboxFull(Overloaded):
    code = "inbox_full"


class MessageUnknown(NotFound):
    code = "message_unknown"
