"""Every container's command, started as it stands with its environment, on servers of this machine.

No container is made here. The names of other machines are replaced by servers that the test
started, and ports by free ones; everything else is as the files say.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY, created_secrets, documents
from tests.kit.cluster import ClusterProcess
from tests.kit.postgres import PostgresProcess
from tests.kit.roles import ANY_PORT, ROOT, RoleProcess
from tests.kit.server import ServerProcess

START_S_MAX = 90.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresProcess]:
    with PostgresProcess() as found:
        yield found


def compose() -> dict[str, Any]:
    """The services, with each password and token that compose asks for set to its name."""
    text = (DEPLOY / "compose.yaml").read_text()
    return dict(yaml.safe_load(re.sub(r"\$\{(\w+):\?[^}]*\}", r"\1", text))["services"])


def kubernetes() -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each deployment's pod and its container."""
    found = []
    for each in documents(DEPLOY / "kubernetes" / "roles.yaml"):
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]
            (container,) = pod["spec"]["containers"]
            chosen = each["spec"]["selector"]["matchLabels"]
            assert chosen.items() <= pod["metadata"]["labels"].items()
            found.append((pod, container))
    return found


def here(
    settings: Mapping[str, str], redis_url: str, database_url: str, lake: Path
) -> dict[str, str]:
    """The environment of a container, for this machine."""
    found = {**settings, **ANY_PORT, "PYTHONPATH": f"{DEPLOY / 'app'}:{ROOT}"}
    found["ANGARIUM_REDIS_URL"] = redis_url
    found["ANGARIUM_DATABASE_URL"] = database_url
    found["ANGARIUM_LAKE_URL"] = str(lake)
    inbound = json.loads(settings.get("ANGARIUM_ROUTING__INBOUND", "[]"))
    if inbound:
        free = [[kind, host, "0"] for kind, host, _ in inbound]
        found["ANGARIUM_ROUTING__INBOUND"] = json.dumps(free)
    return found


ROLES = [name for name, each in compose().items() if each.get("command", [""])[0] == "serve"]


@pytest.mark.timeout(200)
async def test_each_service_of_compose_starts_and_has_the_ports_it_publishes(
    cluster: ClusterProcess, postgres: PostgresProcess, tmp_path: Path
) -> None:
    """All of them, each in a process of its own, as compose would start them."""
    async with asyncio.TaskGroup() as group:
        for name in ROLES:
            group.create_task(_starts(name, cluster.url, postgres.url, tmp_path / "lake"))


async def _starts(name: str, redis_url: str, database_url: str, lake: Path) -> None:
    service = compose()[name]
    settings = dict(service["environment"])
    settings.pop("ANGARIUM_LAKE__MASTER", None)
    own = here(settings, redis_url, database_url, lake)
    # The servers of the tests are shared: another prefix keeps this apart from other tests.
    own["ANGARIUM_PREFIX"] = "deploy:"
    own["ANGARIUM_DURABILITY"] = "memory"  # the tests' cluster keeps no append-only file
    async with RoleProcess(service["command"], own, deadline_s=START_S_MAX) as role:
        (ready,) = role.readiness()
        assert [ready["role"]] == service["command"][1:]
        published = {int(each.split(":")[-1]) for each in service.get("ports", [])}
        assert published <= {_usual(each, settings) for each in ready["ports"]}, name
        if "healthcheck" in service:
            _, _, *words = service["healthcheck"]["test"]
            words = [each.replace("8400", str(role.ports["http"])) for each in words]
            check = await asyncio.create_subprocess_exec(sys.executable, *words)
            assert await check.wait() == 0
        assert await asyncio.to_thread(role.terminate, 60) == 0, name


def _usual(name: str, settings: Mapping[str, str]) -> int:
    """The port that stands on the page of settings for what a role prints by this name."""
    if name in ("http", "ws") and "ANGARIUM_ROUTING__INBOUND" in settings:
        return next(
            int(port)
            for kind, _, port in json.loads(settings["ANGARIUM_ROUTING__INBOUND"])
            if kind == name
        )
    page = (ROOT / "docs" / "settings.md").read_text()
    variable = {
        "http": "ANGARIUM_HTTP__PORT",
        "gateway": "ANGARIUM_PICKUP__PORT",
        "ack": "ANGARIUM_DISPATCH__ACK_PORT",
        "worker": "ANGARIUM_DISPATCH__WORKER_PORT",
    }[name]
    found = re.search(rf"`{variable}`[^\n|]*\|[^\n]*?\b(\d+)\b", page)
    assert found is not None, variable
    return int(found[1])


async def test_the_roles_of_kubernetes_start_with_its_settings_and_answer_their_probes(
    postgres: PostgresProcess, tmp_path: Path
) -> None:
    (config,) = documents(DEPLOY / "kubernetes" / "settings.yaml")
    secret = {name: value for each in created_secrets().values() for name, value in each}
    del secret["VALKEY_PASSWORD"]
    valkey = documents(DEPLOY / "kubernetes" / "valkey.yaml")[0]
    (container,) = valkey["spec"]["template"]["spec"]["containers"]
    (script,) = container["args"]
    assert "requirepass" in script
    options = dict(re.findall(r"--([\w-]+) (\w+)", script))
    with ServerProcess(config={**options, "requirepass": "secret"}) as server:
        settings = here(
            {**config["data"], **secret}, server.url, postgres.new_database(), tmp_path / "lake"
        )
        commands = [container["args"] for _, container in kubernetes()]
        assert all(command[0] == "serve" for command in commands)
        roles = [role for command in commands for role in command[1:]]
        together = RoleProcess(
            ["serve", *roles], settings, ready_lines=len(roles), deadline_s=START_S_MAX
        )
        async with together as process:
            ports = {line["role"]: line["ports"] for line in process.readiness()}
            for pod, container in kubernetes():
                named = {each["name"]: each["containerPort"] for each in container.get("ports", [])}
                for probe in ("livenessProbe", "readinessProbe"):
                    if probe in container:
                        _probe(container[probe], container["name"], ports, named)
                _volumes_match(pod, container)


def _probe(
    probe: Mapping[str, Any],
    role: str,
    ports: Mapping[str, Mapping[str, int]],
    named: Mapping[str, int],
) -> None:
    about = probe.get("httpGet") or probe["tcpSocket"]
    assert about["port"] in named, role
    # A role with one door may call it otherwise than its container does.
    door = ports[role].get(about["port"]) or next(iter(ports[role].values()))
    with socket.create_connection(("127.0.0.1", door), timeout=30) as connection:
        if "httpGet" in probe:
            line = f"GET {about['path']} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n"
            connection.sendall(line.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200 "), probe


def _volumes_match(pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    made = {each["name"] for each in pod["spec"]["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == made
    # The file system is read only: what is written to has to be mounted.
    paths = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/var/lib/angarium", "/tmp"} <= paths


def test_services_of_kubernetes_lead_to_ports_that_pods_have() -> None:
    pods = {each["name"]: each for _, each in kubernetes()}
    for service in documents(DEPLOY / "kubernetes" / "services.yaml"):
        role = service["spec"]["selector"]["angarium-role"]
        named = {each["name"]: each["containerPort"] for each in pods[role]["ports"]}
        for port in service["spec"]["ports"]:
            assert named[port["targetPort"]] == port["port"]


def test_prometheus_shows_a_token_that_compose_gives_it() -> None:
    (prometheus,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    assert "credentials" not in job["authorization"], "a token is no part of a file that is shared"
    assert job["authorization"]["credentials_file"]
    tokens = json.loads(compose()["api"]["environment"]["ANGARIUM_HTTP__TOKENS"])
    assert "read:PROMETHEUS_TOKEN" in tokens


def test_the_script_that_joins_the_cluster_is_a_script() -> None:
    (script,) = compose()["cluster"]["command"]
    (valkey,) = compose()["valkey-1"]["command"]
    for each in (script, valkey):
        ended = subprocess.run(["sh", "-n", "-c", each.replace("$$", "$")], check=False)
        assert ended.returncode == 0


def test_manifests_fit_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        if path.name != "kustomization.yaml":
            for document in documents(path):
                validate.validate(document, "1.33", strict=True)


def test_expressions_are_promql() -> None:
    parser = pytest.importorskip("promql_parser")
    dashboard = json.loads((DEPLOY / "grafana" / "angarium.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    (alerts,) = documents(DEPLOY / "prometheus" / "alerts.yml")
    expressions += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    for expression in expressions:
        parser.parse(expression)
