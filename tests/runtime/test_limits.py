from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from angarium.runtime.limits import Limits, described
from angarium.settings import AllLimits


def test_every_limit_has_a_unit_and_a_reason() -> None:
    for name, default, limit in described(AllLimits):
        assert name.endswith("_max")
        in_name = {"items": "", "seconds": "_s_"}.get(limit.unit, limit.unit)
        assert in_name in name
        assert limit.reason.endswith(".")
        assert default == getattr(AllLimits(), name)


def test_every_limit_is_described() -> None:
    assert [name for name, _, _ in described(AllLimits)] == [
        field.name for field in fields(AllLimits)
    ]


def test_limits_have_the_defaults_that_other_code_relies_on() -> None:
    limits = Limits()
    assert limits.batch_items_max == 500
    assert limits.batch_bytes_max == 1024 * 1024
    assert limits.batch_waiting_items_max == 100_000


@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_that_lets_nothing_through_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="batch_items_max must be at least 1"):
        Limits(batch_items_max=value)


def test_limits_can_not_be_changed_while_in_use() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().batch_items_max = 3  # type: ignore[misc]
