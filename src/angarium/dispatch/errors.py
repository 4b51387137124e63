"""Errors of the dispatch module.

AngariumError
├── FrameInvalid           bytes that violate the worker protocol; the connection is closed
│   ├── VersionUnknown     the first byte of a frame is not 1
│   ├── CommandUnknown     the second byte is not a command of version 1
│   ├── FrameTooLarge      the frame is longer than `limits.frame_bytes_max`
│   ├── FrameMisplaced     this side does not accept the command, or not in this state
│   ├── PayloadInvalid     the payload does not have the format of the command
│   └── TokenRefused       the other side did not prove that it knows the token
├── NotFound
│   └── DeadLetterUnknown  no message with this id is a dead letter
└── Conflict
    └── DeadLetterUnusable the payload is not in Redis any more: the dead letter can only be dropped
"""

from __future__ import annotations

from angarium.runtime.errors import AngariumError, Conflict, NotFound


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


class DeadLetterUnknown(NotFound):
    code = "dead_letter_unknown"


class DeadLetterUnusable(Conflict):
    code = "dead_letter_unusable"
