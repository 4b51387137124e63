"""Loads Lua scripts from files, with their includes.

A header states what the script guarantees. The loader reads from it whether a call may be repeated
and whether it writes. With `#!lua` on the first line Redis refuses the whole script when memory is
full or keys span slots; without it, Redis would stop the script half-way.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from angarium.redis.errors import ScriptFailed
from angarium.redis.scripts import Script

INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
HEADINGS = ("Guarantee", "Events", "Repeats")
# A script that a `Transition` declares does not need these: its first lines are generated.
POSITIONS = ("KEYS", "ARGV", "Returns")
# The script's own lines begin after its comments.
BODY = re.compile(r"^(?!--)", re.MULTILINE)
STATUS = re.compile(rb"^[a-z_]+$")


def load_script(package: str, name: str, prelude: str = "") -> Script:
    """`load_script("angarium.dispatch", "accept_messages")` reads that module's lua folder.

    `prelude` is Lua code that is inserted before the includes.
    """
    path = files(package) / "lua" / f"{name}.lua"
    assert isinstance(path, Path)  # the package is a folder, not an archive
    return read_script(path, f"{package}.{name}", prelude)


def read_script(path: Path, name: str, prelude: str = "") -> Script:
    """Includes come from the `include` folder beside the script, else from the runtime's."""
    text = path.read_text()
    for heading in HEADINGS if prelude else (*HEADINGS, *POSITIONS):
        if f"\n-- {heading}: " not in text:
            raise ScriptFailed(f"{name}.lua lacks the header line «-- {heading}: …»")
    if not text.startswith("#!lua"):
        raise ScriptFailed(f"{name}.lua must begin with #!lua")
    shebang, _, body = text.partition("\n")
    # Comments are kept: Redis parses them once, and an error's line number is correct.
    if prelude:
        first = INCLUDE.search(body) or BODY.search(body)
        at = first.start() if first else 0
        body = f"{body[:at]}{prelude}\n{body[at:]}"
    body = INCLUDE.sub(lambda found: _included(found.group(1), name, path.parent), body)
    source = f"{shebang}\n{body}"
    return Script(
        name=name,
        source=source,
        sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
        repeatable="\n-- Repeats: safe" in text,
        writes="no-writes" not in shebang,
    )


def _included(include: str, name: str, beside: Path) -> str:
    for folder in (beside, files("angarium.runtime") / "lua"):
        path = folder / "include" / f"{include}.lua"
        if path.is_file():
            return path.read_text()
    raise ScriptFailed(f"{name}.lua includes {include}, which does not exist")


def status_of(reply: object) -> str:
    """The status word of a reply, which is the reply itself or the first element of a list."""

    word = reply[0] if isinstance(reply, list) and reply else reply
    if not isinstance(word, bytes):
        raise ScriptFailed(f"a script answered {reply!r} where a status was due")
    return _status(word)


@lru_cache(maxsize=1_000)
def _status(word: bytes) -> str:
    if not STATUS.match(word):
        raise ScriptFailed(f"a script answered {word!r} where a status was due")
    return word.decode()
