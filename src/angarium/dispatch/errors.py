"""Errors of the dispatch module.

AngariumError
├── FrameInvalid           bytes on a worker connection that break the protocol: it is closed
│   ├── VersionUnknown     the first byte of a frame is not 1
│   ├── CommandUnknown     the second byte is no command of version 1
│   ├── FrameTooLarge      longer than `limits.frame_bytes_max`
│   ├── FrameMisplaced     a command that this side does not take, or not now
│   ├── PayloadInvalid     its payload is not what the command says
│   └── TokenRefused       the other side did not prove that it knows the token
├── NotFound
│   └── DeadLetterUnknown  no dead letter under that id
└── Conflict
    └── DeadLetterUnusable its payload is gone: it can only be dropped
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
