"""No operation fails with a server error, whatever input it gets."""

from __future__ import annotations

import secrets
import urllib.error
import urllib.request
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.faults.profile import rounds
from tests.kit.roles import RoleProcess

load_all_checks()
# A stream that never ends has a test of its own.
ENDLESS = "follow_live"
TAGS = {
    "processes", "transactions", "conversations", "dispatch", "routing", "pickup", "lake",
    "dashboard", "live", "search",
}  # fmt: skip


def environment(redis_url: str) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_HTTP__TOKENS": "admin:boss",
        # Generated waits are long: a page is not tested faster by waiting.
        "ANGARIUM_TRANSACTIONS__LONGPOLL_TIMEOUT_MS": "20",
    }


def operations_at(url: str) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    schema.validate()
    found: Any = schema.get_all_operations()
    return [each.ok() for each in found]


@pytest.mark.timeout(rounds(240, 3_600))
def test_no_operation_answers_with_a_server_error(redis_url: str) -> None:
    # With a gateway: queues can't be emptied before one has counted what the database holds.
    args = ["serve", "api", "gateway"]
    with RoleProcess(args, environment(redis_url), ready_lines=2, deadline_s=90) as role:
        operations = operations_at(f"http://127.0.0.1:{role.ports['http']}")
        tags = {tag for each in operations for tag in each.definition.raw["tags"]}
        assert tags >= TAGS
        for operation in operations:
            if operation.definition.raw["operationId"] == ENDLESS:
                continue

            @settings(max_examples=rounds(4, 200), suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def hold(case: Any) -> None:
                # Well-formed ids that nobody gave out are refused all the same.
                case.call_and_validate(
                    headers={"Authorization": "Bearer boss"},
                    excluded_checks=[positive_data_acceptance],
                )

            hold()
        assert role.alive


def test_no_operation_is_open_without_a_token(redis_url: str) -> None:
    with RoleProcess(["serve", "api"], environment(redis_url), deadline_s=90) as role:
        url = f"http://127.0.0.1:{role.ports['http']}"
        for operation in operations_at(url):
            path = operation.path.replace("{", "").replace("}", "")
            request = urllib.request.Request(f"{url}{path}", method=operation.method.upper())
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(request)
            with raised.value as answer:
                assert answer.status == 401, operation.label
                assert answer.headers["content-type"] == "application/problem+json"
