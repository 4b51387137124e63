"""Text from user code, made valid or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.runtime.errors import InputInvalid
from angarium.runtime.text import check_text, valid_text


@given(st.text(st.characters(codec=None), max_size=50))
def test_text_is_valid_afterwards_and_unchanged_if_it_was(text: str) -> None:
    cleaned = valid_text(text)
    cleaned.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(InputInvalid, match="name"):
            check_text(text, "name")
    else:
        assert cleaned == text == check_text(text, "name")
