"""Reads settings from the environment and `angarium.toml`; errors name a setting as its user did.

`Sources` refuses unknown names and converts pydantic's first error into one `SettingInvalid`. It
contains no setting's name: it reads the model that it is given. No message contains a secret or a
password of a URL.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from angarium.runtime.errors import SettingInvalid
from angarium.runtime.limits import Limits, described
from angarium.runtime.urls import redacted

PREFIX = "ANGARIUM_"
CONFIG_VARIABLE = "ANGARIUM_CONFIG"
CONFIG_NAME = "angarium.toml"
LIST_OF_NAMES = "docs/settings.md lists the names"
VALUE_SHOWN_MAX = 60

# Kubernetes sets variables for each service in the environment of every container. A service called
# `angarium-…` must not prevent its own pods from starting.
_SERVICE_LINK = re.compile(
    r"ANGARIUM(_[A-Z0-9]+)*?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")

Location = tuple[str, ...]
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class FormerName:
    """The name of a setting in a system that Angarium replaces; used in `Annotated`."""

    variable: str


@dataclass(frozen=True)
class SettingField:
    """One setting, for the checks and the reference page."""

    path: Location
    default: Any
    description: str
    former_names: tuple[str, ...] = ()
    secret: bool = False
    derived: bool = False

    @property
    def variable(self) -> str:
        return PREFIX + "__".join(self.path).upper()


def setting_fields(model: type[BaseModel], above: Location = ()) -> Iterator[SettingField]:
    """All settings of a model, including those of its groups, in order."""
    for name, field in model.model_fields.items():
        path = (*above, name)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from setting_fields(kind, path)
        elif isinstance(kind, type) and issubclass(kind, Limits):
            for limit_name, default, limit in described(kind):
                yield SettingField((*path, limit_name), default, f"In {limit.unit}. {limit.reason}")
        else:
            yield SettingField(
                path,
                None if field.default_factory else field.default,
                field.description or "",
                tuple(mark.variable for mark in field.metadata if isinstance(mark, FormerName)),
                secret=SecretStr in (kind, *getattr(kind, "__args__", ())),
                derived=field.default_factory is not None,
            )


@dataclass(frozen=True)
class Sources:
    fields: tuple[SettingField, ...]
    overrides: Tree
    environment: Mapping[str, str]
    config: Tree
    config_name: str

    @classmethod
    def read(cls, model: type[BaseModel], overrides: Tree) -> Sources:
        # An empty variable counts as not set, because compose files omit a variable that way.
        environment = {name: value for name, value in os.environ.items() if value}
        name, config = _read_config(environment.get(CONFIG_VARIABLE))
        return cls(tuple(setting_fields(model)), overrides, environment, config, name)

    def refuse_unknown(self) -> None:
        variables = [field.variable for field in self.fields]
        for name in self.environment:
            if not name.upper().startswith(PREFIX) or name in (*variables, CONFIG_VARIABLE):
                continue
            if not _is_service_link(name, self.environment[name]):
                raise _unknown(name, name.upper(), variables)
        dotted = [".".join(field.path) for field in self.fields]
        for path in _unknown_paths(self.config, self.fields):
            name = ".".join(path)
            raise _unknown(f"{name} in {self.config_name}", name, dotted)
        for path in _unknown_paths(self.overrides, self.fields):
            raise _unknown(".".join(path), ".".join(path), dotted)

    def from_environment(self) -> dict[str, Any]:
        """The variables that are set, as a tree. Two names with different values are refused."""
        tree: dict[str, Any] = {}
        for field in self.fields:
            given = [
                name for name in (field.variable, *field.former_names) if name in self.environment
            ]
            if not given:
                continue
            values = {self.environment[name].strip() for name in given}
            if len(values) > 1:
                raise SettingInvalid(
                    " and ".join(given), "they have different values", "keep one of them"
                )
            branch = tree
            for part in field.path[:-1]:
                branch = branch.setdefault(part, {})
            branch[field.path[-1]] = self.environment[given[0]]
        return tree

    def name_in_source(self, path: Location) -> str:
        """The name of the setting in the source of its value."""
        if _contains(self.overrides, path):
            return ".".join(path)
        field = self._field(path)
        for name in (field.variable, *field.former_names) if field else ():
            if name in self.environment:
                return name
        if _contains(self.config, path):
            return f"{'.'.join(path)} in {self.config_name}"
        return field.variable if field else PREFIX + "__".join(path).upper()

    def invalid(self, error: ValidationError) -> SettingInvalid:
        """The first error, in one line."""
        details = error.errors(include_url=False)[0]
        at = details.get("ctx", {}).get("at") or details["loc"]
        path = self._setting_path(at)
        problem, fix = _explain(details, self._field(path))
        return SettingInvalid(self.name_in_source(path), _one_line(problem), fix)

    def _field(self, path: Location) -> SettingField | None:
        return next((field for field in self.fields if field.path == path), None)

    def _setting_path(self, location: Iterable[int | str]) -> Location:
        """The path without pydantic's additions: positions in a list, members of a union."""
        path = tuple(str(part) for part in location)
        while len(path) > 1 and not any(e.path[: len(path)] == path for e in self.fields):
            path = path[:-1]
        return path


def _read_config(named: str | None) -> tuple[str, Tree]:
    name = named or CONFIG_NAME
    try:
        with Path(name).open("rb") as file:
            return name, tomllib.load(file)
    except FileNotFoundError:
        if named is None:
            return name, {}
        problem = _one_line(f"there is no file {named}")
        raise SettingInvalid(CONFIG_VARIABLE, problem, "correct the path or unset it") from None
    except (OSError, UnicodeDecodeError):
        raise SettingInvalid(
            CONFIG_VARIABLE if named else name,
            _one_line(f"{name} can't be read as text"),
            "make it a readable file or move it away",
        ) from None
    except (ValueError, RecursionError) as error:
        problem = _one_line(f"it is not TOML: {error}")
        raise SettingInvalid(_one_line(name), problem, "correct it or move it away") from None


def _is_service_link(name: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(name):
        return True
    return name.endswith("_PORT") and _SERVICE_ADDRESS.match(value) is not None


def _unknown(setting: str, name: str, names: list[str]) -> SettingInvalid:
    # The common prefix would make all names similar.
    endings = {known.removeprefix(PREFIX): known for known in names}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), endings, n=1, cutoff=0.5)
    fix = f"did you mean {endings[close[0]]}?" if close else LIST_OF_NAMES
    return SettingInvalid(_one_line(setting), "there is no such setting", fix)


def _unknown_paths(
    tree: Tree, fields: tuple[SettingField, ...], above: Location = ()
) -> Iterator[Location]:
    for name, value in tree.items():
        path = (*above, str(name))
        below = [field for field in fields if field.path[: len(path)] == path]
        if not below:
            yield path
        elif isinstance(value, Mapping) and below[0].path != path:
            yield from _unknown_paths(value, fields, path)


def _contains(tree: Any, path: Location) -> bool:
    for part in path:
        if not isinstance(tree, Mapping):
            # The group was given as one object.
            return True
        if part not in tree:
            return False
        tree = tree[part]
    return True


def _explain(details: ErrorDetails, field: SettingField | None) -> tuple[str, str]:
    """The problem and what to do about it, for each of pydantic's error types."""
    context = {name: _plain(value) for name, value in details.get("ctx", {}).items()}
    value = _shown(details["input"], field)
    such_as = f" such as {field.default}" if field and field.default is not None else ""
    match details["type"].partition("_")[0], details["type"]:
        case _, "refused":
            return context["problem"], context["fix"]
        case _, "greater_than_equal":
            return f"{value} is less than {context['ge']}", f"use at least {context['ge']}"
        case _, "greater_than":
            return f"{value} is not more than {context['gt']}", f"use more than {context['gt']}"
        case _, "less_than_equal":
            return f"{value} is more than {context['le']}", f"use at most {context['le']}"
        case _, "enum" | "literal_error":
            return f"{value} is not a choice", f"use {context['expected']}"
        case "int", _:
            return f"{value} is not a whole number", f"use one{such_as}"
        case "float" | "finite", _:
            return f"{value} is not a number", f"use one{such_as}"
        case "bool", _:
            return f"{value} is neither true nor false", "use true or false"
        case "model" | "dataclass", _:
            return f"{value} is not a group of settings", "set its members one by one"
        case "string" | "path", _:
            return f"{value} is not text", "put it in quotes"
        case _:
            return details["msg"], LIST_OF_NAMES


def _shown(value: Any, field: SettingField | None) -> str:
    if field is None or field.secret:
        return "the value"
    text = redacted(str(value))
    return f"'{text[:VALUE_SHOWN_MAX]}…'" if len(text) > VALUE_SHOWN_MAX else f"'{text}'"


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_line(text: str) -> str:
    """The text with line ends and other invisible characters escaped."""

    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
