"""HTTP requests out of bytes: cut anywhere, the same comes out; what is odd is refused."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.routing.http1 import HEAD_BYTES_MAX, Refused, Request, RequestReader, response

POST = b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n"
)


def read(data: bytes, body_bytes_max: int = 1_000) -> list[Request]:
    reader = RequestReader(body_bytes_max)
    reader.feed(data)
    found = []
    while (request := reader.next_request()) is not None:
        found.append(request)
    return found


def test_a_body_comes_by_length_or_in_chunks() -> None:
    assert [each.body for each in read(POST + CHUNKED + POST)] == [b"hello"] * 3
    (request,) = read(POST)
    assert (request.method, request.target, request.keep_alive) == ("POST", "/in", True)


@given(st.lists(st.integers(0, len(POST + CHUNKED)), max_size=8))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int]) -> None:
    data = POST + CHUNKED
    edges = [0, *sorted(cuts), len(data)]
    reader, found = RequestReader(1_000), []
    for start, end in itertools.pairwise(edges):
        reader.feed(data[start:end])
        while (request := reader.next_request()) is not None:
            found.append(request.body)
    assert found == [b"hello", b"hello"]
    assert not reader.midway


def head(*lines: str) -> bytes:
    return "\r\n".join(["POST / HTTP/1.1", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        (b"POST /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (head(), 400),
        (head("Host: x", "Host: y"), 400),
        (head("Host: x", "Content-Length: 1", "Content-Length: 2"), 400),
        (head("Host: x", "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (head("Host: x", "Content-Length: -1"), 400),
        (head("Host: x", "Content-Length: 1x"), 400),
        (head("Host: x", "Content-Length: 1001"), 413),
        (head("Host: x", "Content-Length: 99999999999999"), 413),
        (head("Host: x", "Transfer-Encoding: gzip"), 501),
        (head("Host: x", " folded: y"), 400),
        (head("Host: x", "a b: y"), 400),
        (head("Host: x", "a: b\nc: d"), 400),
        (head("Host: x", *(f"h{n}: y" for n in range(200))), 431),
        (b"A" * (HEAD_BYTES_MAX + 1), 431),
        (head("Host: x", "Transfer-Encoding: chunked") + b"zz\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"3\r\nabcde\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"3e9\r\n", 413),
        (head("Host: x", "Transfer-Encoding: chunked") + b"1" * 300, 400),
    ],
)
def test_what_is_odd_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(Refused) as refusal:
        read(data)
    assert refusal.value.status == status


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for before in (b"", head("Host: x", "Transfer-Encoding: chunked")):
        with contextlib.suppress(Refused):
            read(before + data)


def test_a_peer_that_waits_for_leave_is_noticed() -> None:
    reader = RequestReader(1_000)
    reader.feed(head("Host: x", "Content-Length: 5", "Expect: 100-continue"))
    assert reader.next_request() is None
    assert reader.waits_for_leave
    reader.feed(b"hello")
    request = reader.next_request()
    assert request is not None
    assert request.body == b"hello"


def test_an_answer_can_not_be_split_by_its_type() -> None:
    answer = response(200, b"x", "text/plain\r\nset-cookie: a=b")
    assert answer.count(b"\r\n\r\n") == 1
    assert b"\r\nset-cookie" not in answer
