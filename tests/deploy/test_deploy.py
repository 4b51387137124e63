"""The deployment files name roles, settings and figures that exist; the servers they describe
are not started here, the figures are read from roles that run."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from angarium.redis.embedded.supervisor import COMPACT
from angarium.server.app import ROLES
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.kit.roles import ROOT, RoleProcess
from tests.kit.server import ServerProcess

DEPLOY = ROOT / "deploy"
# A variable without which compose does not start.
ASKED = re.compile(r"\$\{\w+:\?[^}]*\}")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def environments() -> Iterator[tuple[str, Mapping[str, str], list[str]]]:
    """Who, its variables, its command."""
    compose = documents(DEPLOY / "compose.yaml")[0]
    for name, service in compose["services"].items():
        if service.get("image") == "angarium" and "entrypoint" not in service:
            variables = {
                variable: ASKED.sub("secret", value)
                for variable, value in service["environment"].items()
            }
            yield f"compose {name}", variables, service["command"]
    (settings,) = documents(DEPLOY / "kubernetes" / "settings.yaml")
    for deployment in documents(DEPLOY / "kubernetes" / "roles.yaml"):
        if deployment["kind"] != "Deployment":
            continue
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        secrets = [each["secretRef"]["name"] for each in container["envFrom"][1:]]
        created = {name: value for secret in secrets for name, value in created_secrets()[secret]}
        yield f"kubernetes {container['name']}", settings["data"] | created, container["args"]


def created_secrets() -> dict[str, list[tuple[str, str]]]:
    """Name → variables with values, as the commands in kustomization.yaml create them."""
    text = (DEPLOY / "kubernetes" / "kustomization.yaml").read_text()
    found: dict[str, list[tuple[str, str]]] = {}
    for name, variable, value in re.findall(r"secret (\S+) --from-literal=(\w+)=(.+)", text):
        found.setdefault(name, []).append((variable, value.strip("'").replace("…", "u:p@h/d")))
    return found


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, pod and container of everything that Kubernetes runs."""
    for path in ("roles.yaml", "valkey.yaml"):
        for found in documents(DEPLOY / "kubernetes" / path):
            if found["kind"] in ("Deployment", "StatefulSet"):
                pod = found["spec"]["template"]["spec"]
                for container in pod["containers"]:
                    yield container["name"], pod, container


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


def test_no_password_has_a_default_and_compose_asks_for_each() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert "change" not in text
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    assert asked == set(re.findall(r"\b[A-Z]+_(?:PASSWORD|TOKEN)\b", text)) - {"ANGARIUM_DISPATCH"}
    assert not re.findall(r"\$\{\w+(?::-|\})", text)


def test_each_role_gets_only_the_secrets_that_it_needs() -> None:
    database = {"api", "conversations", "gateway", "archiver", "lake"}
    for where, variables, command in environments():
        role = command[1]
        assert ("ANGARIUM_DATABASE_URL" in variables) == (role in database), where
        assert ("ANGARIUM_DISPATCH__TOKEN" in variables) == (role in {"dispatcher", "worker"}), (
            where
        )
        assert ("ANGARIUM_HTTP__TOKENS" in variables) == (role == "api"), where
        assert ("ANGARIUM_PICKUP__TOKENS" in variables) == (role == "gateway"), where
        assert "secret@" in variables["ANGARIUM_REDIS_URL"].replace("PASSWORD@", "secret@"), where


@pytest.mark.parametrize(("name", "pod", "container"), [*containers()])
def test_containers_run_without_privileges(
    name: str, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def valkey_settings(where: str) -> dict[str, str]:
    """What the command line of the server sets."""
    if where == "compose":
        (text,) = documents(DEPLOY / "compose.yaml")[0]["services"]["valkey-1"]["command"]
    else:
        ((_, _, container),) = [each for each in containers() if each[0] == "valkey"]
        (text,) = container["args"]
    line = text[text.index("exec valkey-server") :].replace("\\\n", " ")
    words = shlex.split(line)[3:]
    return dict(zip((each.removeprefix("--") for each in words[::2]), words[1::2], strict=True))


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_the_servers_are_as_compact_as_the_embedded_one(where: str, tmp_path: Path) -> None:
    found = valkey_settings(where)
    assert COMPACT.items() <= found.items()
    allowed = {name: found[name] for name in found if not name.startswith("cluster")}
    with ServerProcess(config=allowed | {"dir": str(tmp_path)}) as server:
        for name, value in allowed.items():
            if name != "dir":
                assert server.client().config_get(name) == {name: value}


def test_network_policies_let_clients_reach_the_public_roles_only() -> None:
    policies = documents(DEPLOY / "kubernetes" / "network.yaml")
    (closed,) = [each for each in policies if each["spec"]["podSelector"] == {}]
    assert closed["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    public = {
        each["spec"]["podSelector"]["matchLabels"]["angarium-role"]
        for each in policies
        if each is not closed and any("from" not in rule for rule in each["spec"]["ingress"])
    }
    assert public == {"api", "gateway", "relay"}


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
