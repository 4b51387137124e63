"""One format on stderr, whoever logs: JSON lines for programs, aligned lines for people."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from angarium.runtime import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # `configure` closes the handlers it replaces, and pytest's are not ours to close.
    root.handlers = []
    yield
    root.handlers, root.level = handlers, level


def test_a_record_is_one_json_object_with_its_values_and_its_time() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    log.logger("angarium.test", service="api").info("started", port=8400)
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "started",
        "level": "info",
        "logger": "angarium.test",
        "service": "api",
        "port": 8400,
    }


def test_records_of_other_libraries_and_errors_take_the_same_form() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    logging.getLogger("uvicorn.error").warning("slow %s", "client", extra={"color_message": "x"})
    log.logger("angarium.test").error("failed", exc_info=ValueError("why"), what=object)
    foreign, ours = map(json.loads, stream.getvalue().splitlines())
    assert (foreign["event"], foreign["logger"]) == ("slow client", "uvicorn.error")
    assert "color_message" not in foreign
    assert "ValueError: why" in ours["exception"]


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    log.logger("angarium.test").debug("detail")
    assert stream.getvalue() == ""
    log.configure(stream=stream, level=logging.DEBUG)
    log.logger("angarium.test").debug("detail")
    assert "detail" in stream.getvalue()


def test_people_at_a_terminal_get_lines_that_are_not_json() -> None:
    stream = Terminal()
    log.configure(stream=stream)
    log.logger("angarium.test").info("started", port=8400)
    assert "started" in stream.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(stream.getvalue())


def test_a_library_user_without_our_set_up_gets_ordinary_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger().addHandler(caplog.handler)
    log.logger("angarium.test").warning("started", port=8400)
    (record,) = caplog.records
    assert record.name == "angarium.test"
    assert "started" in record.getMessage()
