"""A token that is bound to a tenant: what it reaches, and everything else that it must not."""

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

# Whatever another tenant has, this is in it.
SECRET = f"secret{secrets.token_hex(6)}"
PIPELINE = {"name": "p", "steps": [{"type": "s"}]}
# What a tenant's token may ask for at all; each has a way to tell whose it is.
OF_TENANTS = {
    "pickup_connection", "pickup_drain", "listTransactions", "getTransaction",
    "cancelTransaction", "setSwitch", "followTransaction", "startTransaction",
    "startTransactions",
}  # fmt: skip


@dataclass(frozen=True)
class House:
    """An API with a gateway in which «other» and nobody in particular have data."""

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
def house(redis_server: ServerProcess) -> Iterator[House]:
    env = environment(redis_server.url)
    env["ANGARIUM_HTTP__TOKENS"] = json.dumps(["admin:boss", "admin@acme:acme"])
    env["ANGARIUM_PICKUP__TOKENS"] = json.dumps(["other:other-gate"])
    args = ["serve", "api", "gateway"]
    with RoleProcess(args, env, ready_lines=2, deadline_s=90) as role:
        empty = House(f"http://127.0.0.1:{role.ports['http']}", "", "", "")
        yield _furnished(empty, role.ports["gateway"])


def _furnished(house: House, gateway: int) -> House:
    def made(method: str, path: str, body: Any) -> Any:
        status, text = house.ask(method, path, "boss", body)
        assert status < 300, text
        return json.loads(text)

    made("PUT", "/v1/pipelines/p", PIPELINE)
    start = {"pipeline": "p", "data": {"x": SECRET}, "external_id": SECRET}
    foreign = made("POST", "/v1/transactions", {**start, "owner": "other"})["id"]
    plain = made("POST", "/v1/transactions", start)["id"]
    made("POST", "/v1/messages", {"payload": {"x": SECRET}})
    request = {"conversationId": SECRET, "requestId": f"rq-{SECRET}", "origin": "chat"}
    made("POST", "/v1/conversations/requests", request)
    connection = f"phone-{SECRET}"
    with SyncPickupClient(f"ws://127.0.0.1:{gateway}/", token="other-gate") as client:
        client.add_message(connection, [f"did:example:{SECRET}"], {"x": SECRET})
    return House(house.url, foreign, plain, connection)


def test_what_is_not_of_one_tenant_is_refused_to_its_token(house: House) -> None:
    asked = 0
    for operation in operations_at(house.url):
        if operation.definition.raw["operationId"] in OF_TENANTS:
            continue
        path = operation.path.replace("{", "").replace("}", "")
        status, text = house.ask(operation.method.upper(), path, body={})
        assert (status, json.loads(text)["code"]) == (403, "tenant_foreign"), operation.label
        asked += 1
    assert asked > 20
    status, text = house.ask("GET", "/metrics")
    assert (status, json.loads(text)["code"]) == (403, "tenant_foreign")


def test_every_operation_of_tenants_is_still_there(house: House) -> None:
    found = {each.definition.raw["operationId"] for each in operations_at(house.url)}
    assert found >= OF_TENANTS


def test_no_way_of_asking_leads_to_what_another_has(house: House) -> None:
    connection = urllib.parse.quote(house.connection)
    ids = house.foreign_id, house.foreign_plain_id
    batch = [{"pipeline": "p", "owner": "acme"}, {"pipeline": "p", "owner": "other"}]
    for method, path, body in (
        *(("GET", f"/v1/transactions/{id}", None) for id in ids),
        *(("GET", f"/v1/transactions/{id}?owner=acme&wait_s=0.01", None) for id in ids),
        *(("GET", f"/v1/transactions/{id}/events", None) for id in ids),
        *(("POST", f"/v1/transactions/{id}/cancel", None) for id in ids),
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
        ("GET", f"/datp/1.0/tx/status/{house.foreign_id}", None),
        ("GET", f"/datp/1.0/tx/statusByExternalId/{SECRET}?owner=acme", None),
        ("GET", f"/v1/search?id={SECRET}", None),
        ("GET", f"/v1/conversations/{SECRET}", None),
        ("POST", "/v1/transactions", {"pipeline": "p"}),
        ("POST", "/v1/transactions", {"pipeline": "p", "owner": "other"}),
        ("POST", "/v1/transactions/batch", {"transactions": batch}),
        ("POST", "/v1/transactions//batch", {"transactions": batch}),
    ):
        status, text = house.ask(method, path, body=body)
        # An id in the path is the caller's own word; what stands beside it is not.
        assert SECRET not in text.replace(house.connection, ""), (method, path, text)
        if status < 300:
            assert json.loads(text) in ({"transactions": []}, {"removed": 0}), (path, text)
        else:
            assert status in (400, 403, 404, 405), (method, path, status, text)
    _check_untouched(house)


def test_a_repeated_member_of_a_body_is_no_way_round(house: House) -> None:
    for text in ('{"pipeline":"p","owner":"acme","owner":"other"}',
                 '{"pipeline":"p","owner":"acme","ow\\u006eer":"other"}'):  # fmt: skip
        headers = {"authorization": "Bearer acme"}
        url = f"{house.url}/v1/transactions"
        request = urllib.request.Request(url, text.encode(), headers, method="POST")
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request)
        with raised.value as answer:
            assert answer.status == 403


@pytest.mark.timeout(rounds(240, 3_600))
def test_whatever_the_page_allows_tells_a_tenant_nothing_of_others(house: House) -> None:
    for operation in operations_at(house.url):
        if operation.definition.raw["operationId"] == ENDLESS:
            continue

        @settings(max_examples=rounds(3, 100), suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def hold(case: Any) -> None:
            answer = case.call(headers={"Authorization": "Bearer acme"})
            assert answer.status_code < 500, (case, answer.text)
            assert SECRET not in answer.text, case

        hold()
    _check_untouched(house)


def _check_untouched(house: House) -> None:
    """Others still have what they had."""
    for id in (house.foreign_id, house.foreign_plain_id):
        status, text = house.ask("GET", f"/v1/transactions/{id}", "boss")
        assert (status, json.loads(text)["status"]) == (200, "queued"), text
    path = f"/v1/pickup/connections/{urllib.parse.quote(house.connection)}?tenant=other"
    status, text = house.ask("GET", path, "boss")
    assert (status, json.loads(text)["pending"]) == (200, 1), text
