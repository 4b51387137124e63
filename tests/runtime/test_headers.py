"""Headers that users give: which are sent as they are, and which are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.runtime.headers import HEADERS_BYTES_MAX, HEADERS_MAX, HeaderRefused, check_headers


def test_ordinary_headers_come_back_as_they_were() -> None:
    headers = {"Content-Type": "a/b; c=d", "x-id": "", "Authorization": "Bearer é\tz", "~!": "1"}
    assert check_headers(headers) == headers


def test_numbers_become_text_and_other_values_are_refused() -> None:
    assert check_headers({"a": 7, "b": 1.5}) == {"a": "7", "b": "1.5"}
    for value in (None, ["x"], {"x": "y"}, b"x"):
        with pytest.raises(HeaderRefused, match="'a'"):
            check_headers({"a": value})


@pytest.mark.parametrize(
    "name",
    [
        "Transfer-Encoding", "CONTENT-LENGTH", "content_length", "Host", "Connection", "Keep-Alive",
        "Proxy-Connection", "proxy-anything", "TE", "Trailer", "Upgrade", "Expect",
        "HTTP2-Settings", "Sec-WebSocket-Key", "sec-websocket-extensions",
    ],
)  # fmt: skip
def test_a_header_of_the_connection_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(HeaderRefused) as refused:
        check_headers({"x-fine": "1", name: "1"})
    assert repr(name) in str(refused.value)
    assert (refused.value.code, refused.value.http_status) == ("header_refused", 400)


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "é", "a\x00", "(a)", "\udce9"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(HeaderRefused):
        check_headers({name: "1"})


@pytest.mark.parametrize("value", ["a\rb", "a\nb", "a\x00", "\x7f", "\x85", "日", "\udce9"])
def test_a_value_that_no_header_may_have_is_refused(value: str) -> None:
    with pytest.raises(HeaderRefused, match="'x'"):
        check_headers({"x": value})


def test_headers_are_limited_in_number_and_bytes() -> None:
    full = {f"x{number}": "1" for number in range(HEADERS_MAX)}
    assert check_headers(full) == full
    with pytest.raises(HeaderRefused, match="65 headers"):
        check_headers({**full, "y": "1"})
    longest = "x" * (HEADERS_BYTES_MAX - 5)
    assert check_headers({"x": longest})
    with pytest.raises(HeaderRefused, match="bytes"):
        check_headers({"x": longest + "x"})


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5))
def test_whatever_is_given_comes_back_clean_or_is_refused(headers: dict[str, str]) -> None:
    try:
        checked = check_headers(headers)
    except HeaderRefused:
        return
    assert checked == headers
    text = "".join(f"{name}: {value}" for name, value in checked.items())
    assert not set(text) & set("\r\n\x00")
