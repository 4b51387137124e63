"""Valid and invalid requests generated from the OpenAPI page, against a real process."""

from __future__ import annotations

import secrets
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.faults.profile import rounds
from tests.kit.roles import RoleProcess

load_all_checks()


def test_the_api_conforms_to_its_openapi_page(redis_url: str) -> None:
    env = {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_HTTP__PORT": "0",
        # Generated waits are long, and waiting tests nothing.
        "ANGARIUM_TRANSACTIONS__LONGPOLL_TIMEOUT_MS": "20",
    }
    with RoleProcess(["serve", "api"], env) as role:
        url = f"http://127.0.0.1:{role.ports['http']}"
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json").include(tag="transactions")
        names = []
        operations: Any = schema.get_all_operations()
        for found in operations:
            operation = found.ok()
            names.append(operation.label)

            @settings(max_examples=rounds(8, 200), suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def hold(case: Any) -> None:
                # Well-formed but unknown ids and names are refused.
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            hold()
        assert len(names) == 23, names
        assert role.alive
