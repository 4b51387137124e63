"""The deployment files name roles, settings and figures that exist; the servers they describe
are not started here, the figures are read from roles that run."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from angarium.server.app import ROLES
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.kit.roles import ROOT, RoleProcess

DEPLOY = ROOT / "deploy"


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def environments() -> Iterator[tuple[str, Mapping[str, str], list[str]]]:
    """Who, its variables, its command."""
    compose = documents(DEPLOY / "compose.yaml")[0]
    for name, service in compose["services"].items():
        if service.get("image") == "angarium" and "entrypoint" not in service:
            yield f"compose {name}", service["environment"], service["command"]
    (settings,) = documents(DEPLOY / "kubernetes" / "settings.yaml")
    for deployment in documents(DEPLOY / "kubernetes" / "roles.yaml"):
        if deployment["kind"] != "Deployment":
            continue
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        yield f"kubernetes {container['name']}", settings["data"], container["args"]


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_every_role_is_deployed(where: str) -> None:
    deployed = {
        role
        for name, _, command in environments()
        if name.startswith(where)
        for role in command[1:]
    }
    assert deployed == set(ROLES)


@pytest.mark.parametrize(("name", "variables", "command"), [*environments()])
def test_every_setting_is_one_that_this_version_has(
    name: str, variables: Mapping[str, str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    settings = load()
    assert settings.redis_url.startswith("redis"), name


def test_the_files_of_kubernetes_are_all_named() -> None:
    folder = DEPLOY / "kubernetes"
    (kustomization,) = documents(folder / "kustomization.yaml")
    assert {*kustomization["resources"], "kustomization.yaml"} == {
        path.name for path in folder.iterdir()
    }


def figures() -> set[str]:
    """The names that the dashboard's and the alerts' expressions mention."""
    dashboard = json.loads((DEPLOY / "grafana" / "angarium.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    (alerts,) = documents(DEPLOY / "prometheus" / "alerts.yml")
    expressions += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    return {name for text in expressions for name in re.findall(r"\bangarium_\w+", text)}


async def test_every_figure_is_one_that_the_roles_show() -> None:
    wanted = figures()
    assert len(wanted) > 20
    async with RoleProcess(["up", "tests.deploy.application:app", "--json"]) as role:
        page = f"http://127.0.0.1:{role.port_of('api', 'http')}/metrics"

        def missing() -> set[str]:
            with urllib.request.urlopen(page) as answer:
                text = answer.read().decode()
            return wanted - set(re.findall(r"^(?:# TYPE )?(angarium_\w+)", text, re.MULTILINE))

        def all_shown() -> bool:
            assert missing() == set()
            return True

        await eventually(all_shown, deadline_s=60)
