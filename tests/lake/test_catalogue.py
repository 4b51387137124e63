"""The catalogue of events against the scripts that write them and the pages that explain them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from angarium.lake.catalogue import CATALOGUE, OUTCOMES
from angarium.modules import MODULES as ALL
from angarium.runtime.module import LEASE, Part

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "angarium"
KNOWN = set(CATALOGUE)
MODULES = sorted({module for module, _ in KNOWN})
LITERAL = re.compile(r"\b(?:note|note_message|record_event)\(\s*'([a-z_]+)'\s*,")
ROW = re.compile(r'"e":"([a-z_]+)"')
EVENTS_LINE = re.compile(r"^-- Events: (.*(?:\n-- (?![A-Z][a-z]+:|include).*)*)", re.MULTILINE)


# The runtime notes events of several kinds, and has no page of a module.
PAGES = [each for each in MODULES if each != "runtime" and (SOURCE / each).is_dir()]
MODULE = re.compile(r"journal_append\('(\w+)'\)")


def scripts() -> list[tuple[str, Path]]:
    """Those of the modules, and those of the runtime that note events of their own."""
    found = [
        (module, path)
        for module in PAGES
        for path in sorted((SOURCE / module / "lua").rglob("*.lua"))
    ]
    for path in sorted((SOURCE / "runtime" / "lua").glob("*.lua")):
        found += [(module, path) for module in MODULE.findall(path.read_text())]
    return found


def literal_events(text: str) -> set[str]:
    return {*LITERAL.findall(text), *ROW.findall(text)}


def test_every_event_that_a_script_writes_is_in_the_catalogue() -> None:
    unknown = {
        (module, event, path.name)
        for module, path in scripts()
        for event in literal_events(path.read_text())
        if (module, event) not in KNOWN
    }
    assert not unknown
    assert sum(len(literal_events(path.read_text())) for _, path in scripts()) > 50


def test_every_event_that_a_header_announces_is_in_the_catalogue() -> None:
    """Where a script computes an event's name, its header names all that can come out."""
    words = {event for _, event in KNOWN}
    announced: set[tuple[str, str]] = set()
    for module, path in scripts():
        for line in EVENTS_LINE.findall(path.read_text()):
            told = [] if line.startswith("none") else re.findall(r"[a-z_]+", line)
            announced |= {(module, word) for word in told if word in words}
    assert announced - KNOWN == set()
    for computed in (
        ("transactions", "expired"), ("transactions", "cancelled"), ("transactions", "completed"),
        ("routing", "outbound_retried"), ("pickup", "pushed"), ("pickup", "push_failed"),
        ("conversations", "delivered"), ("routing", "retired"),
    ):  # fmt: skip
        assert computed in KNOWN


def test_the_catalogue_has_no_event_that_no_script_writes() -> None:
    texts = dict.fromkeys(MODULES, "")
    for module, path in scripts():
        texts[module] += path.read_text()
    for module in PAGES:  # a script may be given an event's name by the code that calls it
        files = (SOURCE / module).glob("*.py")
        texts[module] += "".join(f.read_text() for f in files if f.name != "module.py")
    for module, event in KNOWN:
        # `outbound_` is put in front of an outcome by the script itself.
        assert event.removeprefix("outbound_") in texts[module], (module, event)


@pytest.mark.parametrize("module", PAGES)
def test_the_page_of_a_module_explains_the_same_events(module: str) -> None:
    page = (ROOT / "docs" / "modules" / f"{module}.md").read_text()
    table = page[page.index("| event" if "| event" in page else "| Event") :]
    table = table[: table.index("\n\n")]
    first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    explained = {word for cell in first_cells for word in re.findall(r"`([a-z_]+)`", cell)}
    assert explained == {event for name, event in KNOWN if name == module}


def test_every_account_can_begin_and_end() -> None:
    parts: dict[tuple[str, str], set[Part]] = {}
    for (module, _), each in CATALOGUE.items():
        parts.setdefault((module, each.account), set()).add(each.part)
    for (_, account), found in parts.items():
        assert not account or {Part.ACCEPT, Part.END} <= found


def test_an_event_means_one_thing() -> None:
    names = Counter((module.name, each.name) for module in (*ALL, LEASE) for each in module.events)
    assert max(names.values()) == 1
    for each in CATALOGUE.values():
        assert (each.outcome in OUTCOMES) == (each.part is Part.END)
