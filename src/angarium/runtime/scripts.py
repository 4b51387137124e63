"""Loads Lua scripts from files, with their includes.

A header states what the script guarantees. The loader reads from it whether a call may be repeated
and whether it writes. With `#!lua` on the first line Redis refuses the whole script when memory is
full or keys span slots; without it, Redis would stop the script half-way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path

from angarium.redis.errors import ScriptFailed
from angarium.redis.scripts import Script

INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
HEADINGS = ("Guarantee", "Events", "Repeats")
COMMENT = re.compile(r"--.*")
REPLY = re.compile(r"\breply\.(\w+)\b")
LOCAL = re.compile(r"local (?:function )?(\w+)")
FUNCTION = re.compile(r"^local function (\w+)\((?:[^\n]* end$|.*?^end$)", re.MULTILINE | re.DOTALL)
# The script's own lines begin after its comments.
BODY = re.compile(r"^(?!--)", re.MULTILINE)


def load_script(
    package: str, name: str, prelude: Sequence[str] = (), words: Collection[str] = ()
) -> Script:
    """`load_script("angarium.dispatch", "accept_messages")` reads that module's lua folder.

    `prelude` is Lua code that is inserted before the includes: of each line «local name …» or
    «local function name …», only if the script uses the name. `words` are the replies without
    fields: `reply.word` becomes the text.
    """
    path = files(package) / "lua" / f"{name}.lua"
    assert isinstance(path, Path)  # the package is a folder, not an archive
    return read_script(path, f"{package}.{name}", prelude, words)


def read_script(
    path: Path, name: str, prelude: Sequence[str] = (), words: Collection[str] = ()
) -> Script:
    """Includes come from the `include` folder beside the script, else from the runtime's."""
    text = path.read_text()
    for heading in HEADINGS:
        if f"\n-- {heading}: " not in text:
            raise ScriptFailed(f"{name}.lua lacks the header line «-- {heading}: …»")
    if not text.startswith("#!lua"):
        raise ScriptFailed(f"{name}.lua must begin with #!lua")
    shebang, _, body = text.partition("\n")
    # Comments are kept: Redis parses them once, and an error's line number is correct.
    first = INCLUDE.search(body) or BODY.search(body)
    at = first.start() if first else 0
    comments, code = body[:at], body[at:]
    code = INCLUDE.sub(lambda found: _included(found.group(1), name, path.parent), code)
    code = _without_unused_functions(code)
    # A word is written out where it is used, because a table of words costs every call.
    code = REPLY.sub(lambda found: f"'{found[1]}'" if found[1] in words else found[0], code)
    body = f"{comments}{_used(prelude, COMMENT.sub('', code))}\n{code}"
    source = f"{shebang}\n{body}"
    return Script(
        name=name,
        source=source,
        sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
        repeatable="\n-- Repeats: safe" in text,
        writes="no-writes" not in shebang,
    )


def _used(prelude: Sequence[str], code: str) -> str:
    """On one line. From the last to the first, because one may use another before it."""
    kept: list[str] = []
    for line in reversed(prelude):
        local = LOCAL.match(line)
        if local is None or re.search(rf"\b{local[1]}\b", " ".join((*kept, code))):
            kept.append(line)
    return " ".join(reversed(kept))


def _without_unused_functions(code: str) -> str:
    """Redis makes every function anew for each call, so those of an include that the script does
    not use are left out. Empty lines stay in their place, for the line numbers of errors."""
    for function in reversed(list(FUNCTION.finditer(code))):
        start, end = function.span()
        rest = COMMENT.sub("", code[:start] + code[end:])
        if not re.search(rf"\b{function[1]}\b", rest):
            code = code[:start] + "\n" * function[0].count("\n") + code[end:]
    return code


def _included(include: str, name: str, beside: Path) -> str:
    for folder in (beside, files("angarium.runtime") / "lua"):
        path = folder / "include" / f"{include}.lua"
        if path.is_file():
            return path.read_text()
    raise ScriptFailed(f"{name}.lua includes {include}, which does not exist")
