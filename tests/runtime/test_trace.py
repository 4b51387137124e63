"""Traces: read from what a payload carries, else made of the id, and never a reason to refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.runtime.trace import CurrentWork, Trace, read_traceparent

CARRIED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MESSAGE = b"A1111111-1111-4111-8111-111111110000"


def test_a_payload_may_carry_the_trace() -> None:
    found = CurrentWork(MESSAGE, {"traceparent": CARRIED}, is_message=True)
    assert found.trace == Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert found.trace.header == CARRIED
    assert found.parent == Trace("0af7651916cd43dd8448eb211c80319c", "8111111111110000")


@pytest.mark.parametrize("payload", [None, [], "x", {"traceparent": 1}, {"traceparent": "00-x"}])
def test_without_a_traceparent_the_message_id_is_the_trace_id(payload: object) -> None:
    found = CurrentWork(MESSAGE, payload, is_message=True)
    assert found.trace.trace_id == "a1111111111141118111111111110000"
    assert found.trace is found.trace
    assert found.message_id == MESSAGE.decode()


def test_a_transaction_and_its_children_share_a_trace() -> None:
    id = b"0192f0c8b2d17c3f8a6e0f6d2c9b1a77"
    assert CurrentWork(id + b"12345678").trace == CurrentWork(id + b"12345678.0-1").trace
    assert CurrentWork(id).message_id is None


def test_the_message_id_is_given_once() -> None:
    found = CurrentWork(MESSAGE, is_message=True)
    assert found.message_id_once() == MESSAGE.decode()
    assert found.message_id_once() is None


@pytest.mark.parametrize(
    "text",
    ["", "ff" + CARRIED[2:], f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", None],
)
def test_an_invalid_traceparent_is_ignored(text: object) -> None:
    assert read_traceparent(text) is None


@given(st.text())
def test_no_text_is_refused(text: str) -> None:
    read_traceparent(text)
