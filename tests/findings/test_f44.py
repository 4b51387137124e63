"""F44: a class name exists once, and names and pages use the words of the field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES as DOCS
from tests.kit.roles import ROOT

PACKAGE = ROOT / "src/angarium"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGES = [*DOCS, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]
# Words of 0.1.0 that need a glossary. Dead letters and a hand-over are words of the field.
OLD_WORDS = frozenset(
    re.split(
        r"\s+",
        "burial burials buried bury building desk desks elder elders floor ground handout haul "
        "house inhand joins joint joints lane lanes letterbox plainfloor rooms tally ties watcher",
    )
)
# What the pages of 0.1.0 called its parts; the name of a thing, not the word of everyday English.
OLD_NOUNS = re.compile(
    r"\b(desks?|lanes?|letterbox(es)?|elders|haul|joints|plain ?floor|handouts?|"
    r"the (ground|floor|house|building|bell)|(a|each|every|this|that|of the|other|five) rooms?)\b",
    re.IGNORECASE,
)


def words_of(name: str) -> set[str]:
    return {each.lower() for each in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a file gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_name_is_a_word_that_needs_a_glossary() -> None:
    found = []
    for path in FILES:
        place = str(path.relative_to(ROOT))
        found += [(place, path.stem)] * bool(words_of(path.stem) & OLD_WORDS)
        for line, name in names(ast.parse(path.read_text())):
            found += [(f"{place}:{line}", name)] * bool(words_of(name) & OLD_WORDS)
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_speaks_of_rooms_and_desks(page: Path) -> None:
    if page.name == "findings.md":
        return  # it says what was found in 0.1.0
    text = re.sub(r"`[^`]*`", "", page.read_text())
    found = [match[0] for match in OLD_NOUNS.finditer(text)]
    assert found == []


def test_scripts_have_no_local_name_that_needs_a_glossary() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.lua")):
        local = re.findall(r"\blocal (?:function )?([\w, ]+)", path.read_text())
        defined = {name for names in local for name in re.findall(r"\w+", names)}
        bad = {name for name in (path.stem, *defined) if words_of(name) & OLD_WORDS}
        found += [(path.name, name) for name in sorted(bad)]
    assert found == []
