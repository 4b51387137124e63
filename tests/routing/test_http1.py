"""HTTP parser: the cut of the bytes does not matter, and malformed requests are refused."""

from __future__ import annotations

import contextlib
import itertools

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from angarium.routing.http1 import (
    HEAD_BYTES_MAX,
    HttpRequest,
    HttpRequestReader,
    HttpRequestRefused,
    response,
)
from tests.faults.profile import rounds

POST = b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n"
)


def read(data: bytes, body_bytes_max: int = 1_000) -> list[HttpRequest]:
    reader = HttpRequestReader(body_bytes_max)
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
    reader, found = HttpRequestReader(1_000), []
    for start, end in itertools.pairwise(edges):
        reader.feed(data[start:end])
        while (request := reader.next_request()) is not None:
            found.append(request.body)
    assert found == [b"hello", b"hello"]
    assert not reader.in_progress


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
        (head("Host: x", "a: b\rc: d"), 400),
        (head("Host: x", "a: b\0c"), 400),
        (head("Host: x", "Content-Length : 3"), 400),
        (head("Host: x", "Content-Length: +3"), 400),
        (head("Host: x", "Content-Length: 3, 3"), 400),
        (head("Host: x", "Content-Length: 0x3"), 400),
        (head("Host: x", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
        (head("Host: x", "Transfer-Encoding: chunked, identity"), 501),
        (head("Host: x", "Transfer-Encoding: \x0bchunked"), 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\nHost: x\n\n" + b" " * HEAD_BYTES_MAX, 431),
        (b"\r\n" * 10, 400),
        (head("Host: x", *(f"h{n}: y" for n in range(200))), 431),
        (b"A" * (HEAD_BYTES_MAX + 1), 431),
        (head("Host: x", "Transfer-Encoding: chunked") + b"zz\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"3\r\nabcde\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"3e9\r\n", 413),
        (head("Host: x", "Transfer-Encoding: chunked") + b"1" * 300, 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"3;a\nb\r\nhel\r\n0\r\n\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"3;a\rb\r\nhel\r\n0\r\n\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"-3\r\nhel\r\n0\r\n\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"0x3\r\nhel\r\n0\r\n\r\n", 400),
        (head("Host: x", "Transfer-Encoding: chunked") + b"0\r\nHost: y\r\n\r\n", 400),
    ],
)
def test_malformed_requests_are_refused(data: bytes, status: int) -> None:
    with pytest.raises(HttpRequestRefused) as refusal:
        read(data)
    assert refusal.value.status == status


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for before in (b"", head("Host: x", "Transfer-Encoding: chunked")):
        with contextlib.suppress(HttpRequestRefused):
            read(before + data)


LINES = st.sampled_from(
    [
        *("Host: x", "host:y", "Content-Length: 5", "Content-Length:0", "content-length: 05"),
        *("Content-Length: 5 ", "Content-Length: 5,5", "Content-Length: -5", "Content-Length:"),
        *("Transfer-Encoding: chunked", "transfer-encoding:\tCHUNKED", "Transfer-Encoding: gzip"),
        *("Transfer-Encoding: chunked, chunked", "Transfer-Encoding:\x0bchunked", "a: b\rc: d"),
        *("Transfer-Encoding : chunked", "Expect: 100-continue", "Connection: close", " folded"),
        *("Connection: keep-alive", "a: b\nContent-Length: 9", "x\0: y", ": none", "", "nothing"),
    ]
)
STARTS = st.sampled_from(
    [
        *("POST / HTTP/1.1", "POST /\x7f HTTP/1.1", "GET /a?b HTTP/1.1", "POST / HTTP/1.0"),
        *("post / HTTP/1.1", "POST  / HTTP/1.1", "POST / HTTP/1.1 ", "\r\nPOST / HTTP/1.1"),
        *("POST / HTTP/1.01", "POST /", "POST http://a/ HTTP/1.1"),
    ]
)
ENDS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n", "\r"])
BODIES = st.sampled_from(
    [
        *(b"", b"hello", b"hell", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"5\nhello\n0\n\n"),
        *(b"05;a=b\r\nhello\r\n00\r\n\r\n", b"5\r\nhelloo\r\n0\r\n\r\n", b"0\r\nA: b\r\n\r\n"),
        *(b"5;\nx\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"fffffffff\r\n"),
    ]
)


@st.composite
def odd_requests(draw: st.DrawFn) -> bytes:
    """Requests side by side as attackers write them: almost right, and endings of every kind."""
    found = b""
    for _ in range(draw(st.integers(1, 3))):
        lines = [draw(STARTS), *draw(st.lists(LINES, max_size=4))]
        end = "\r\n" if draw(st.booleans()) else draw(ENDS)
        found += (end.join([*lines, "", ""])).encode("latin-1") + draw(BODIES)
    return found


def read_until_refused(data: bytes) -> tuple[list[tuple[str, str, bytes]], bool]:
    """What we make of it: requests, and whether we refused what came after them."""
    reader = HttpRequestReader(1_000)
    reader.feed(data)
    found: list[tuple[str, str, bytes]] = []
    try:
        while (request := reader.next_request()) is not None:
            found.append((request.method, request.target, request.body))
            if not request.keep_alive:
                return found, True
    except HttpRequestRefused:
        return found, True
    return found, False


def read_by_another(data: bytes, wanted: int) -> tuple[list[tuple[str, str, bytes]], str]:
    """What h11, a strict reader of another hand, makes of as many requests; and why not of all."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    found: list[tuple[str, str, bytes]] = []
    body, method, target = b"", "", ""
    while len(found) < wanted:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            return found, str(error)
        if isinstance(event, h11.Request):
            body, method, target = b"", event.method.decode(), event.target.decode()
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            found.append((method, target, body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                break
            connection.start_next_cycle()
        else:
            break
    return found, ""


@settings(max_examples=rounds(500, 50_000), deadline=None)
@given(odd_requests())
@example(POST + CHUNKED + POST)
def test_accepted_requests_are_those_of_another_strict_parser(data: bytes) -> None:
    """Nothing is smuggled: a request that we see is one that others see, with the same body."""
    ours, _ = read_until_refused(data)
    theirs, refusal = read_by_another(data, len(ours))
    if refusal == "no request line received":
        # A blank line before a request, which it may be strict about and we may not.
        ours = ours[: len(theirs)]
    assert ours == theirs, refusal


@settings(max_examples=rounds(100, 10_000), deadline=None)
@given(odd_requests(), st.data())
def test_malformed_requests_may_be_cut_anywhere(data: bytes, draw: st.DataObject) -> None:
    whole = read_until_refused(data)
    reader, found = HttpRequestReader(1_000), []
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    refused = False
    try:
        for start, end in itertools.pairwise([0, *cuts, len(data)]):
            reader.feed(data[start:end])
            while not refused and (request := reader.next_request()) is not None:
                found.append((request.method, request.target, request.body))
                refused = not request.keep_alive
    except HttpRequestRefused:
        refused = True
    assert (found, refused) == whole


def test_a_peer_that_waits_for_100_continue_is_noticed() -> None:
    reader = HttpRequestReader(1_000)
    reader.feed(head("Host: x", "Content-Length: 5", "Expect: 100-continue"))
    assert reader.next_request() is None
    assert reader.expects_continue
    reader.feed(b"hello")
    request = reader.next_request()
    assert request is not None
    assert request.body == b"hello"


def test_a_content_type_can_not_split_the_response() -> None:
    answer = response(200, b"x", "text/plain\r\nset-cookie: a=b")
    assert answer.count(b"\r\n\r\n") == 1
    assert b"\r\nset-cookie" not in answer
