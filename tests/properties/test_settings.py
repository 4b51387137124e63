"""Settings given anything at all: taken, or refused in one line that names them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from angarium.runtime.errors import SettingInvalid
from angarium.runtime.setting_sources import setting_fields
from angarium.settings import Settings, load

pytestmark = pytest.mark.usefixtures("no_settings")


def attempt(**overrides: Any) -> SettingInvalid | None:
    try:
        assert load(**overrides)
    except SettingInvalid as error:
        return error
    return None


VARIABLES = [entry.variable for entry in setting_fields(Settings)]
# Rules over two settings name the one to change, which need not be the one that was set.
PARTNERS = {
    "persisting_permission_lock1_period": "persisting_permission_lock2_period",
    "redis_url": "partitions",
}
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(name=st.sampled_from(VARIABLES), value=text)
def test_any_text_in_any_variable_is_taken_or_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        refused = attempt()
    assert refused is None or (names(refused, name) and str(refused).isprintable())


def names(refused: SettingInvalid, setting: str) -> bool:
    """Whether the refusal is about this setting, or about the partner of a rule over two."""
    last = re.split(r"__|\.|ANGARIUM_", setting)[-1].lower()
    partner = PARTNERS.get(last)
    return refused.setting == setting or (
        partner is not None and refused.setting.lower().endswith(partner)
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(path=st.sampled_from([entry.path for entry in setting_fields(Settings)]), value=values)
def test_any_value_for_any_setting_is_taken_or_refused_in_one_line(
    path: tuple[str, ...], value: object
) -> None:
    overrides: Any = value
    for part in reversed(path):
        overrides = {part: overrides}
    refused = attempt(**overrides)
    assert refused is None or str(refused).isprintable()
    assert refused is None or names(refused, ".".join(path))
