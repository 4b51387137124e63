"""Every limit that a manifest declares has a test that fills it."""

from __future__ import annotations

import pytest

from tests.kit.limits import declared_limits, marked_tests


@pytest.mark.parametrize("limit", declared_limits())
def test_a_limit_has_a_test_that_fills_it(limit: str) -> None:
    tests = [test for name, test in marked_tests() if name == limit]
    assert tests, f'mark the test that fills it: @pytest.mark.limit("{limit}")'


def test_only_declared_limits_are_filled() -> None:
    declared = declared_limits()
    unknown = [each for each in marked_tests() if each[0] not in declared]
    assert unknown == []
