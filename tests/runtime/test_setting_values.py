from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_core import PydanticCustomError

from angarium.runtime.setting_group import (
    CONSUMERS_FIX,
    INBOUND_FIX,
    read_consumers,
    read_home,
    read_inbound,
    read_list,
)


@pytest.mark.parametrize("value", ["a:1, b:2", '["a:1", "b:2"]', ["a:1", "b:2"], "a:1,b:2,"])
def test_consumers_are_a_list_in_any_spelling(value: object) -> None:
    assert read_consumers(value) == ("a:1", "b:2")


def test_consumers_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "consumers"
    file.write_text("# the first rack\na:1\n\nb:2  # slow\n[::1]:3\n")
    assert read_consumers(str(file)) == ("a:1", "b:2", "[::1]:3")


def test_a_file_with_a_wrong_line_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "consumers"
    file.write_text("a:1\nb\n")
    with pytest.raises(PydanticCustomError, match="'b' is not host:port; "):
        read_consumers(str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(PydanticCustomError, match="can't be read; make it readable text"):
        read_consumers(str(file))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("nofile", "'nofile' is not host:port and not a file"),
        ("a:1,b", "'b' is not host:port"),
        ("a:1,b:70000", "'b:70000' has a port that is not between 1 and 65535"),
        ([1], "it is not a list of host:port"),
        (7, "it is not a list of host:port"),
        ("[", "it is not JSON: Expecting value: line 1 column 2 (char 1)"),
    ],
)
def test_consumers_that_can_not_be_dialled_are_refused(value: object, problem: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        read_consumers(value)
    assert str(caught.value) == f"{problem}; {CONSUMERS_FIX}"


def test_listeners_are_read_with_ports_as_text_or_numbers() -> None:
    expected = (("http", "0.0.0.0", 8021), ("ws", "::", 0))
    assert read_inbound('[["http","0.0.0.0","8021"],["ws","::",0]]') == expected
    assert read_inbound([["http", "0.0.0.0", 8021], ["ws", "::", "0"]]) == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('[["tcp","h","1"]]', "the transport 'tcp' is neither http nor ws"),
        ('[["http","h"]]', "['http', 'h'] is not a transport, a host and a port"),
        ('[["http","","1"]]', "'' is not a host"),
        ('[["http","h","x"]]', "'x' is not a port between 0 and 65535"),
        ('[["http","h",65536]]', "65536 is not a port between 0 and 65535"),
        ("http,h,1", "'http' is not a transport, a host and a port"),
        (5, "it is not a list of listeners"),
    ],
)
def test_listeners_that_can_not_be_opened_are_refused(value: object, problem: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        read_inbound(value)
    assert str(caught.value) == f"{problem}; {INBOUND_FIX}"


def test_json_made_to_break_the_parser_is_refused() -> None:
    with pytest.raises(PydanticCustomError, match="it is not JSON: "):
        read_list("[" * 100_000)


@pytest.mark.parametrize("value", ["", "a\0b"])
def test_a_home_that_is_no_folder_name_is_refused(value: str) -> None:
    with pytest.raises(PydanticCustomError, match="it is not the name of a folder"):
        read_home(value)


def test_a_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(PydanticCustomError, match="write the whole path"):
        read_home("~nobody-of-that-name/x")
