"""The text of a failed try as it is stored: one line, behind the reason the traceback's frames.

A message's record has one line for each failure, so the lines of a traceback are joined by a
character that neither Lua nor `str.split` takes for white space. Only the newest failure of a
message keeps its traceback (`add_reason` in Lua). Does no I/O.
"""

from __future__ import annotations

import traceback

from angarium.runtime.text import valid_text

LINE_END = "␤"
INDENT = "\N{NO-BREAK SPACE}"
# The innermost frames say where it failed; every dead letter stores them.
TRACEBACK_CHARS_MAX = 2_000


def failure_text(reason: str, frames: str) -> str:
    reason = " ".join(reason.replace(LINE_END, " ").split())
    return f"{reason}{LINE_END}{frames}" if frames else reason


def frames_of(error: BaseException) -> str:
    """The innermost frames of the error in one line; empty if it was not raised."""
    lines = "".join(traceback.format_tb(error.__traceback__)).splitlines()
    kept: list[str] = []
    left = TRACEBACK_CHARS_MAX
    for line in reversed(lines):
        left -= len(line) + 1
        if left < 0:
            break
        text = line.lstrip()
        kept.append(INDENT * (len(line) - len(text)) + text.replace(LINE_END, " "))
    return valid_text(LINE_END.join(reversed(kept)))


def split_failure(stored: str) -> tuple[str, str]:
    """The reason, and the frames of the traceback with their lines."""
    reason, _, frames = stored.partition(LINE_END)
    return reason, frames.replace(INDENT, " ").replace(LINE_END, "\n")
