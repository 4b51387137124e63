"""A tenant's token reaches the tenant's data and nothing else."""

from __future__ import annotations

import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from angarium.pickup.client import SyncPickupClient
from tests.faults.profile import rounds
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.server.test_openapi import ENDLESS, environment, operations_at

# Part of all data of other tenants.
SECRET = f"secret{secrets.token_hex(6)}"
# They name no owner, another one, or two.
DEAD_QUERIES = (
    "", "?reason=x", "?owner=other", "?owner=", "?owner=acme&owner=other",
    "?owner=other&owner=acme",
)  # fmt: skip
PIPELINE = {"name": "p", "steps": [{"type": "s"}]}
# The operations that a tenant's token may call; each names the tenant of its data.
OF_TENANTS = {
    "pickup_connection", "pickup_drain", "list_transactions", "get_transaction",
    "cancel_transaction", "set_switch", "follow_transaction", "start_transaction",
    "start_transactions", "get_transaction_by_external_id", "rerun_transaction",
    "list_dead_transactions", "retry_dead_transactions", "drop_dead_transactions",
    "show_dead_transaction", "retry_dead_transaction", "drop_dead_transaction", "datp_start",
    "datp_status", "datp_status_by_external_id",
}  # fmt: skip


@dataclass(frozen=True)
class ApiWithTenants:
    """An API and a gateway with data of the tenant `other` and of the default tenant."""

    url: str
    foreign_id: str
    foreign_plain_id: str
    connection: str

    def ask(self, method: str, path: str, token: str = "acme", body: Any = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error as answer:
                return error.code, answer.read().decode()


@pytest.fixture(scope="module")
def api(redis_server: ServerProcess) -> Iterator[ApiWithTenants]:
    env = environment(redis_server.url)
    env["ANGARIUM_HTTP__TOKENS"] = json.dumps(["admin:boss", "admin@acme:acme"])
    env["ANGARIUM_PICKUP__TOKENS"] = json.dumps(["other:other-gate"])
    args = ["serve", "api", "gateway"]
    with RoleProcess(args, env, ready_lines=2, deadline_s=90) as role:
        empty = ApiWithTenants(f"http://127.0.0.1:{role.ports['http']}", "", "", "")
        yield _furnished(empty, role.ports["gateway"])


def _furnished(api: ApiWithTenants, gateway: int) -> ApiWithTenants:
    def made(method: str, path: str, body: Any) -> Any:
        status, text = api.ask(method, path, "boss", body)
        assert status < 300, text
        return json.loads(text)

    made("PUT", "/v1/pipelines/p", PIPELINE)
    start = {"pipeline": "p", "data": {"x": SECRET}, "external_id": SECRET}
    foreign = made("POST", "/v1/transactions", {**start, "owner": "other"})["id"]
    plain = made("POST", "/v1/transactions", start)["id"]
    made("POST", "/v1/messages", {"payload": {"x": SECRET}})
    request = {"conversation_id": SECRET, "request_id": f"rq-{SECRET}", "origin": "chat"}
    made("POST", "/v1/conversations/requests", request)
    connection = f"phone-{SECRET}"
    with SyncPickupClient(f"ws://127.0.0.1:{gateway}/", token="other-gate") as client:
        client.add_message(connection, [f"did:example:{SECRET}"], {"x": SECRET})
    return ApiWithTenants(api.url, foreign, plain, connection)


def test_a_tenants_token_is_refused_operations_on_all_tenants(api: ApiWithTenants) -> None:
    asked = 0
    for operation in operations_at(api.url):
        if operation.definition.raw["operationId"] in OF_TENANTS:
            continue
        path = operation.path.replace("{", "").replace("}", "")
        status, text = api.ask(operation.method.upper(), path, body={})
        assert (status, json.loads(text)["code"]) == (403, "tenant_foreign"), operation.label
        asked += 1
    assert asked > 20
    status, text = api.ask("GET", "/metrics")
    assert (status, json.loads(text)["code"]) == (403, "tenant_foreign")


def test_every_operation_for_tenants_exists(api: ApiWithTenants) -> None:
    found = {each.definition.raw["operationId"] for each in operations_at(api.url)}
    assert found >= OF_TENANTS


def test_no_request_reaches_data_of_another_tenant(api: ApiWithTenants) -> None:
    connection = urllib.parse.quote(api.connection)
    ids = api.foreign_id, api.foreign_plain_id
    batch = [{"pipeline": "p", "owner": "acme"}, {"pipeline": "p", "owner": "other"}]
    asked: tuple[tuple[str, str, Any], ...] = (
        *(("GET", f"/v1/transactions/{id}", None) for id in ids),
        *(("GET", f"/v1/transactions/{id}?owner=acme&wait_s=0.01", None) for id in ids),
        *(("GET", f"/v1/transactions/{id}/events", None) for id in ids),
        *(("POST", f"/v1/transactions/{id}/cancel", None) for id in ids),
        *(("POST", f"/v1/transactions/{id}/rerun", {}) for id in ids),
        *(("GET", f"/v1/transactions/dead/{id}", None) for id in ids),
        *(("GET", f"/v1/transactions/dead/{id}?owner=acme", None) for id in ids),
        *(("POST", f"/v1/transactions/dead/{id}/retry", None) for id in ids),
        *(("DELETE", f"/v1/transactions/dead/{id}?owner=acme", None) for id in ids),
        *(
            (method, f"/v1/transactions/dead{path}{query}", None)
            for method, path in (("GET", ""), ("POST", "/retry"), ("DELETE", ""))
            for query in DEAD_QUERIES
        ),
        ("GET", f"/v1/transactions/by-external-id/{SECRET}?owner=other", None),
        ("PUT", "/datp/1.0/tx/start/p", {"metadata": {"owner": "other"}, "data": {}}),
        *(("PUT", f"/v1/transactions/{id}/switches/s", {"value": "1"}) for id in ids),
        ("GET", "/v1/transactions?status=queued", None),
        ("GET", "/v1/transactions?status=queued&owner=other", None),
        ("GET", "/v1/transactions?status=queued&owner=acme&owner=other", None),
        ("GET", "/v1/transactions?status=queued&owner=other&owner=acme", None),
        ("GET", "/v1/transactions?status=queued&owner=", None),
        ("GET", f"/v1/pickup/connections/{connection}", None),
        ("GET", f"/v1/pickup/connections/{connection}?tenant=other", None),
        ("GET", f"/v1/pickup/connections/{connection}?tenant=acme&tenant=other", None),
        ("GET", f"/v1/pickup/connections/{connection}?tenant=other&tenant=acme", None),
        ("GET", f"/v1/pickup/connections/..%2Fother:{connection}?tenant=acme", None),
        ("DELETE", f"/v1/pickup/connections/{connection}?tenant=other", None),
        ("DELETE", f"/v1/pickup/connections/{connection}?tenant=other&tenant=acme", None),
        ("GET", f"/datp/1.0/tx/status/{api.foreign_id}", None),
        ("GET", f"/datp/1.0/tx/statusByExternalId/{SECRET}?owner=acme", None),
        ("GET", f"/v1/search?id={SECRET}", None),
        ("GET", f"/v1/conversations/{SECRET}", None),
        ("POST", "/v1/transactions", {"pipeline": "p"}),
        ("POST", "/v1/transactions", {"pipeline": "p", "owner": "other"}),
        ("POST", "/v1/transactions/batch", {"transactions": batch}),
        ("POST", "/v1/transactions//batch", {"transactions": batch}),
    )
    for method, path, body in asked:
        status, text = api.ask(method, path, body=body)
        # An id in the path is the caller's own word; what stands beside it is not.
        assert SECRET not in text.replace(api.connection, ""), (method, path, text)
        if status < 300:
            nothing: list[Any] = [
                {"transactions": [], "next": None}, {"letters": [], "next": None}, {"removed": 0},
                {"retried": 0, "unusable": 0}, {"dropped": 0},
            ]  # fmt: skip
            assert json.loads(text) in nothing, (path, text)
        else:
            assert status in (400, 403, 404, 405), (method, path, status, text)
    _check_untouched(api)


def test_a_repeated_member_of_a_body_does_not_bypass_the_check(api: ApiWithTenants) -> None:
    for text in ('{"pipeline":"p","owner":"acme","owner":"other"}',
                 '{"pipeline":"p","owner":"acme","ow\\u006eer":"other"}'):  # fmt: skip
        headers = {"authorization": "Bearer acme"}
        url = f"{api.url}/v1/transactions"
        request = urllib.request.Request(url, text.encode(), headers, method="POST")
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request)
        with raised.value as answer:
            assert answer.status == 403


@pytest.mark.timeout(rounds(240, 3_600))
def test_no_documented_request_reveals_data_of_another_tenant(api: ApiWithTenants) -> None:
    for operation in operations_at(api.url):
        if operation.definition.raw["operationId"] == ENDLESS:
            continue

        @settings(max_examples=rounds(3, 100), suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def hold(case: Any) -> None:
            answer = case.call(headers={"Authorization": "Bearer acme"})
            assert answer.status_code < 500, (case, answer.text)
            assert SECRET not in answer.text, case

        hold()
    _check_untouched(api)


def _check_untouched(api: ApiWithTenants) -> None:
    """Others still have what they had."""
    for id in (api.foreign_id, api.foreign_plain_id):
        status, text = api.ask("GET", f"/v1/transactions/{id}", "boss")
        assert (status, json.loads(text)["status"]) == (200, "queued"), text
    path = f"/v1/pickup/connections/{urllib.parse.quote(api.connection)}?tenant=other"
    status, text = api.ask("GET", path, "boss")
    assert (status, json.loads(text)["pending"]) == (200, 1), text
