"""Writes keyspace.md, metrics.md, settings.md and python.md of docs/ from the code: they can't
drift apart.

`python tools/reference.py` writes the pages; with `--check` it only says which of them are
out of date, and exits with 1 if any is.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from angarium.client import Client, HttpClient, SyncClient
from angarium.client.application import Angarium
from angarium.client.conversations import ConversationsClient
from angarium.client.dispatch import DispatchClient
from angarium.client.pickup import PickupQueuesClient
from angarium.client.routing import RoutingClient
from angarium.client.transactions import TransactionsClient
from angarium.modules import MODULES
from angarium.runtime import limits
from angarium.runtime.application import Application
from angarium.runtime.keyspace import LAYOUT_VERSION, Key, Scope
from angarium.runtime.setting_sources import SettingField, setting_fields
from angarium.settings import AllLimits, Settings

DOCS = Path(__file__).resolve().parents[1] / "docs"
COMMAND = "python tools/reference.py"
GENERATED = f"<!-- Written by `{COMMAND}`. Edit the code, not this page. -->"

KEYSPACE_INTRODUCTION = f"""\
# Keyspace

{GENERATED}

Every key Angarium keeps in Redis. Layout version {LAYOUT_VERSION}.

With one partition (`ANGARIUM_PARTITIONS=1`, the default) a key is called exactly as below,
behind `ANGARIUM_PREFIX`. With more partitions the hash tag of its partition comes first:
partition 3 of `journal` under the prefix `app:` is `{{p3}}:app:journal`. All keys of a
partition are therefore in one slot of a Redis Cluster. The partition of a thing is the CRC-32
of the id it is routed by, modulo the number of partitions.

Keys marked *once* exist once in a keyspace, behind the prefix and without a tag; those marked
*shared* exist once on a server and have no prefix either. Names marked with a setting follow
that setting.
"""

METRICS_INTRODUCTION = f"""\
# Metrics of the roles

{GENERATED}

Each process reports its numbers to Redis every 3 s, and `/metrics` of the API exports those of all
processes, with the labels `host`, `pid` and `actor`. A counter begins at 0 with its process. A name
with a star stands for all names that begin so.
"""

SETTINGS_INTRODUCTION = f"""\
# Settings

{GENERATED}

A setting is looked for in the environment first, then in `angarium.toml` in the current
folder (or in the file that `ANGARIUM_CONFIG` names), and else has its default. An empty
variable counts as not set. In the file, the part of a name in front of `__` is a table:

```toml
partitions = 16                  # ANGARIUM_PARTITIONS

[dispatch]
lock_ms = 1000                   # ANGARIUM_DISPATCH__LOCK_MS
consumers = ["10.0.0.5:9000"]    # ANGARIUM_DISPATCH__CONSUMERS
```

In the environment a list is written as JSON, or with commas where its items are plain text.
A name that begins with `ANGARIUM_` and is not on this page is an error, as is an unknown name
in the file. The names in the last column come from systems whose users move to Angarium; they
mean the same, in the environment only. Giving both names different values is an error.
"""


PYTHON_INTRODUCTION = f"""\
# Python package

{GENERATED}

`from angarium import Angarium` is the application object. The clients are
`from angarium.client import Client, SyncClient, HttpClient`: `SyncClient` has the same methods
without `await`, `HttpClient` those for messages. Errors are subclasses of
`angarium.runtime.errors.AngariumError` with a stable `code`.
"""

PYTHON_CLASSES: dict[str, Any] = {
    "Application: decorators": Application,
    "Application: clients": Angarium,
    "Client": Client,
    "SyncClient": SyncClient,
    "HttpClient": HttpClient,
    "client.dispatch": DispatchClient,
    "client.routing": RoutingClient,
    "client.transactions": TransactionsClient,
    "client.conversations": ConversationsClient,
    "client.pickup": PickupQueuesClient,
}
# Called by roles, not by users.
INTERNAL = {"bind", "unbind", "handler", "handlers", "wrapped", "module_client", "close", "runtime"}


def keyspace_page() -> str:
    sections = [KEYSPACE_INTRODUCTION]
    for module in MODULES:
        if module.keys:
            header = ("Key", "Type", "Holds", "Expires")
            rows = map(_key_row, module.keys)
            sections.append(f"## {module.name.capitalize()}\n\n{_table(header, rows)}")
    return "\n".join(sections)


def _key_row(key: Key) -> tuple[str, ...]:
    # `model_construct` takes the defaults and looks at no environment.
    setting = Settings.model_construct().key_settings().get(key)
    marks = {Scope.KEYSPACE: "*once*", Scope.SERVER: "*shared*"}
    notes = [marks[key.scope]] if key.scope in marks else []
    if setting is not None:
        notes.append(f"set by `{'.'.join(setting)}`")
    name = f"`{key.name}`" + (f" ({', '.join(notes)})" if notes else "")
    return name, key.type, key.meaning, key.expiry


def settings_page() -> str:
    sections = [SETTINGS_INTRODUCTION]
    header = ("Variable", "Default", "Meaning", "Also")
    entries = [entry for entry in setting_fields(Settings) if entry.path[0] != "limits"]
    # The sort keeps the order of the groups and puts the settings outside of them first.
    entries.sort(key=lambda entry: len(entry.path) > 1)
    for group, members in groupby(entries, _group):
        title = "HTTP" if group == "http" else group.capitalize()
        sections.append(f"## {title}\n\n{_table(header, map(_setting_row, members))}")
    sections.append(f"## Limits\n\n{_table(('Variable', 'Default', 'Unit', 'Why'), _limit_rows())}")
    return "\n".join(sections)


def _group(entry: SettingField) -> str:
    return entry.path[0] if len(entry.path) > 1 else "General"


def _setting_row(entry: SettingField) -> tuple[str, ...]:
    also = ", ".join(f"`{name}`" for name in entry.former_names)
    return f"`{entry.variable}`", _default(entry), entry.description, also


def _limit_rows() -> Iterator[tuple[str, ...]]:
    for name, default, limit in limits.described(AllLimits):
        yield f"`ANGARIUM_LIMITS__{name.upper()}`", f"`{default}`", limit.unit, limit.reason


def _default(entry: SettingField) -> str:
    value: Any = entry.default
    if entry.derived:
        return "in the home folder"
    if value is None or value == "":
        return "none"
    if isinstance(value, Path):
        return f"`./{value}`"
    if isinstance(value, bool | tuple):
        return f"`{json.dumps(value)}`"
    return f"`{value}`"


def metrics_page() -> str:
    sections = [METRICS_INTRODUCTION]
    header = ("Metric", "Kind", "Unit", "Meaning")
    for module in MODULES:
        for role, members in groupby(module.metrics, lambda each: each.role):
            rows = [
                (f"`angarium_{role}_{each.name}{'_total' if each.kind == 'counter' else ''}`",
                 each.kind, each.unit, each.help)
                for each in members
            ]  # fmt: skip
            sections.append(f"## {role.capitalize()}\n\n{_table(header, rows)}")
    return "\n".join(sections)


def python_page() -> str:
    parts = [PYTHON_INTRODUCTION]
    for title, kind in PYTHON_CLASSES.items():
        parts.append(f"## {title}\n\n`{kind.__module__}.{kind.__name__}`\n\n{_docstring(kind)}")
        for name, member in vars(kind).items():
            function = member.fget if isinstance(member, property) else member
            if name.startswith("_") or name in INTERNAL or not inspect.isfunction(function):
                continue
            shown = f"```text\n{_signature(name, member)}\n```"
            parts.append(f"{shown}\n\n{_docstring(function)}")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _signature(name: str, member: Any) -> str:
    if isinstance(member, property):
        assert member.fget is not None
        returned = str(inspect.signature(member.fget).return_annotation)
        return f"{name}: {returned.lstrip('_')}"
    start = "await " if inspect.iscoroutinefunction(member) else ""
    shown = inspect.signature(member)
    parameters = [each for each in shown.parameters.values() if each.name != "self"]
    # Annotations are text in this package; defaults keep their quotes.
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(shown.replace(parameters=parameters)))
    text = re.sub(r"<class '(\w+)'>", r"\1", text)
    return f"{start}{name}{text}"


def _docstring(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    escaped = ((cell.replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in escaped)


def pages() -> dict[Path, str]:
    return {
        DOCS / "keyspace.md": keyspace_page(),
        DOCS / "settings.md": settings_page(),
        DOCS / "metrics.md": metrics_page(),
        DOCS / "python.md": python_page(),
    }


def outdated() -> list[Path]:
    return [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    stale = outdated()
    if arguments:
        for path in stale:
            print(f"docs/{path.name} is out of date; run {COMMAND}", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
        print(f"wrote docs/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
