"""F48: pages say what the code does, as far as a program can compare them."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from angarium.runtime.setting_sources import setting_fields
from angarium.settings import Settings
from tests.docs.blocks import PAGES as DOCS
from tests.kit.roles import ROOT, RoleProcess
from tests.kit.server import ServerProcess

PAGES = [*DOCS, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FILE = re.compile(r"`([\w./-]+\.(?:py|lua|md|js|yml|yaml|toml|html|ipynb))(?:::\w+)?`")
# Files that users write, or that a command writes for them.
OF_USERS = {"angarium.toml", "report.html", "NNNN-what-was-decided.md"}
# Read by tests, benchmarks or the setup, not by the product's settings.
OTHER_VARIABLES = {"ANGARIUM_CONFIG"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def files() -> frozenset[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return frozenset(listed.split("\n"))


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of the headings, as the site and the source hosts make them."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", each).strip().lower() for each in headings)
    return frozenset(re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", each)) for each in plain)


# Decisions


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == [*range(1, len(DECISIONS) + 1)]


def test_the_index_lists_every_decision_by_its_title() -> None:
    index = (ROOT / "docs/decisions/index.md").read_text()
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \| .+ \|$", index, re.MULTILINE)
    titles = [
        (path.name[:4], path.name, path.read_text().partition("\n")[0].removeprefix("# ")[6:])
        for path in DECISIONS
    ]
    assert rows == titles


def test_a_decision_has_four_parts() -> None:
    for path in DECISIONS:
        parts = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
        assert parts == ["Context", "Decision", "Alternatives", "Consequences"], path.name


def test_every_decision_that_is_named_exists() -> None:
    numbers = {path.name[:4] for path in DECISIONS}
    wrong = []
    for name in sorted(files()):
        if name.endswith((".py", ".lua", ".md", ".toml", ".js")) and (ROOT / name).is_file():
            found = re.findall(r"\bdecisions?[ /](\d{4})\b", (ROOT / name).read_text())
            wrong += [(name, each) for each in found if each not in numbers]
    assert wrong == []


# Links and names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    wrong = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            wrong.append(target)
    assert wrong == []


def exists(name: str, page: Path) -> bool:
    """A name without a folder may stand anywhere; one with folders is relative to a few places."""
    if "/" not in name:
        return any(each.rpartition("/")[2] == name for each in files()) or name in OF_USERS
    near = (
        ROOT,
        ROOT / "src/angarium",
        ROOT / "docs",
        page.parent,
        ROOT / "src/angarium" / page.stem,
    )
    return any((folder / name).exists() for folder in near)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of
)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = FILE.findall(prose(page))
    assert [each for each in named if not exists(each, page)] == []


def test_every_setting_that_a_page_names_exists() -> None:
    known = {each.variable for each in setting_fields(Settings)} | OTHER_VARIABLES
    known |= {old for each in setting_fields(Settings) for old in each.former_names}
    wrong = []
    for page in PAGES:
        named = re.findall(r"\bANGARIUM_[A-Z0-9_]+[A-Z0-9]\b(?!_?\*)", page.read_text())
        wrong += [(name_of(page), each) for each in named if each not in known]
    assert wrong == []


def paths_of(text: str) -> Iterator[str]:
    for found in re.findall(r"/v1/[\w{}/.-]+", text):
        yield found.rstrip("./-")


def fits(path: str, template: str) -> bool:
    """Whether a path that may contain values or names of its own is one of this operation."""
    parts, wanted = path.split("/"), template.split("/")
    return len(parts) == len(wanted) and all(
        there.startswith("{") or here == there for here, there in zip(parts, wanted, strict=True)
    )


def test_every_operation_that_a_page_names_exists(redis_server: ServerProcess) -> None:
    env = {
        "ANGARIUM_REDIS_URL": redis_server.url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_HTTP__PORT": "0",
    }
    with RoleProcess(["serve", "api"], env, deadline_s=90) as role:
        url = f"http://127.0.0.1:{role.ports['http']}/openapi.json"
        with urllib.request.urlopen(url) as reply:
            templates = list(json.load(reply)["paths"])
    named = {(name_of(page), path) for page in PAGES for path in paths_of(page.read_text())}
    assert len(named) > 30
    assert [each for each in sorted(named) if not any(fits(each[1], at) for at in templates)] == []


# Sizes


def counted(cell: str) -> tuple[int, int]:
    """Files and lines of Python of the packages and files that a cell of the table names."""
    found: list[Path] = []
    for name in re.findall(r"`([\w./]+)`", cell):
        path = ROOT / "src/angarium" / name
        found += path.rglob("*.py") if path.is_dir() else [path]
    return len(found), sum(path.read_text().count("\n") for path in found)


def test_the_table_of_packages_says_their_sizes() -> None:
    """Within a tenth, so that not every change has to touch the table."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([\d,]+) \| ([\d,]+) \|", text, re.MULTILINE)
    assert len(rows) >= 8
    named = {name for cell, *_ in rows for name in re.findall(r"`([\w./]+?)/?`", cell)}
    there = {path.name for path in (ROOT / "src/angarium").iterdir() if path.name[0] not in "_."}
    assert named == there - {"py.typed"}
    for cell, files_said, lines_said in rows:
        files_now, lines_now = counted(cell)
        said = int(files_said.replace(",", "")), int(lines_said.replace(",", ""))
        assert said[0] == pytest.approx(files_now, rel=0.1, abs=2), (cell, files_now, lines_now)
        assert said[1] == pytest.approx(lines_now, rel=0.1, abs=50), (cell, files_now, lines_now)
