"""F46: an operation exists once, in the service of its module, and `/v1` has one spelling."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import secrets
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.roles import ROOT, RoleProcess
from tests.kit.server import ServerProcess

PACKAGE = ROOT / "src/angarium"
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# A path has hyphens where a field has underscores.
SEGMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*|{[a-z_]+}")
Page = Mapping[str, Any]
# The tokens of the API are its own.
OF_THE_API = {"TokenStore"}


@pytest.fixture(scope="module")
def page(redis_server: ServerProcess) -> Page:
    env = {
        "ANGARIUM_REDIS_URL": redis_server.url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_HTTP__PORT": "0",
    }
    with RoleProcess(["serve", "api"], env, deadline_s=90) as role:
        url = f"http://127.0.0.1:{role.ports['http']}/openapi.json"
        with contextlib.closing(urllib.request.urlopen(url)) as reply:
            found: Page = json.load(reply)
    return found


def operations(page: Page) -> Iterator[tuple[str, str, Page]]:
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def fields(schema: Any, page: Page, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names of all fields of a schema, also of those that it refers to."""
    if isinstance(schema, list):
        for each in schema:
            yield from fields(each, page, seen)
        return
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        named = page["components"]["schemas"][reference.rpartition("/")[2]]
        yield from fields(named, page, seen | {reference})
    yield from schema.get("properties", {})
    for name, value in schema.items():
        below = value.values() if name in ("properties", "$defs") else [value]
        yield from fields([*below], page, seen)


def test_every_operation_has_a_name_and_a_path_of_its_own(page: Page) -> None:
    names = Counter(each["operationId"] for _, _, each in operations(page))
    assert [name for name, count in names.items() if count > 1] == []
    # Two templates that differ in the names of their parameters are one path.
    paths = Counter((re.sub(r"{\w+}", "{}", path), method) for path, method, _ in operations(page))
    assert [path for path, count in paths.items() if count > 1] == []
    assert len(names) > 50


def test_v1_speaks_snake_case(page: Page) -> None:
    wrong, seen = [], set()
    for path, method, operation in operations(page):
        if not path.startswith("/v1/"):
            continue
        names = {each["name"] for each in operation.get("parameters", ()) if each["in"] != "header"}
        contents = [operation.get("requestBody", {}), *operation["responses"].values()]
        for content in contents:
            for media in content.get("content", {}).values():
                names.update(fields(media.get("schema"), page))
        seen |= names
        wrong += [
            (method, path, each) for each in path.split("/")[1:] if not SEGMENT.fullmatch(each)
        ]
        wrong += [(method, path, each) for each in sorted(names) if not SNAKE.fullmatch(each)]
    assert wrong == []
    assert {"conversation_id", "transaction_id", "recip_key"} <= seen


# In the code


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text())


def full_names(path: Path, tree: ast.Module) -> Callable[[ast.expr], str]:
    """Returns a function that gives the module and the name that an expression stands for."""
    own = ".".join(["angarium", *path.with_suffix("").parts])
    imported = {
        each.asname or each.name: f"{node.module}.{each.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }

    def full_name(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return imported.get(node.id, f"{own}.{node.id}")
        if isinstance(node, ast.Attribute):
            return f"{full_name(node.value)}.{node.attr}"
        return ""

    return full_name


def test_each_transition_is_called_by_one_file() -> None:
    """A second caller would give the arguments a second meaning, and have batches of its own."""
    declared: set[str] = set()
    callers: dict[str, set[str]] = {}
    for path, tree in trees():
        full_name = full_names(path, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
                if full_name(node.value.func).endswith("runtime.transition.Transition"):
                    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                    declared.add(full_name(target))
            elif isinstance(node, ast.Call):
                for argument in node.args:
                    callers.setdefault(full_name(argument), set()).add(str(path))
    assert len(declared) > 80
    found = {name: callers.get(name, set()) for name in declared}
    # The processes of Spark have a blocking client instead of a runtime, and callers of their own.
    ours = {name: {each for each in found[name] if "lake/" not in each} for name in declared}
    assert {name: files for name, files in ours.items() if len(files) > 1} == {}


def test_only_services_change_the_state_of_a_module() -> None:
    """Client, command line, server and HTTP files use a module's stores only for reading."""
    reads = {"server/search.py", "server/dashboard/views.py"}
    wrong = []
    for path, tree in trees():
        if path.parts[0] not in ("client", "cli", "server", "demo") and path.name != "http.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(path) not in reads:
                stores = [each.name for each in node.names if each.name.endswith("Store")]
                wrong += [(str(path), each) for each in stores if each not in OF_THE_API]
    assert wrong == []


def test_no_tenant_rule_goes_by_the_name_of_an_operation(page: Page) -> None:
    names = {operation["operationId"] for _, _, operation in operations(page)}
    found = [
        (str(path), node.value)
        for path, tree in trees()
        if path.parts[0] == "server" and path.name in ("access.py", "http.py", "traced.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []


def test_the_command_line_prints_in_one_place() -> None:
    printing = {
        str(path)
        for path, tree in trees()
        if path.parts[0] == "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert printing == {"cli/output.py"}
