"""Parses HTTP/1.1 requests. Pure: no sockets, no clock.

The relay's messages are small and many, so the reader returns whole requests and supports only what
a relay needs. It is strict where tolerant parsers have let requests be smuggled: Content-Length or
chunked, never both; chunked only in HTTP/1.1; no obsolete line folding; no control characters in
the head; no trailers. It raises `HttpRequestRefused` with the status to answer; the caller then
closes the connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

# Twice what common servers allow for one header; nothing in a message's head is that long.
HEAD_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100
CHUNK_HEAD_BYTES_MAX = 256
# Before a request line: old clients send an extra one after a body.
BLANK_LINES_MAX = 4

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,4096}) HTTP/1\.([01])")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[\t -~\x80-\xff]*)?")


class HttpRequestRefused(Exception):
    """`status` is the status to answer."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    target: str
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool


class HttpRequestReader:
    """One for each connection. `feed` it bytes, then ask for `next_request`."""

    __slots__ = ("_blank_lines", "_body_bytes", "_body_bytes_max", "_buffer", "_chunks", "_head")

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[bytes, bytes], bool] | None = None
        self._body_bytes: int | None = None  # None: the body comes in chunks
        # One array, not a list: a thousand tiny chunks must not use more memory than their bytes.
        self._chunks = bytearray()
        self._blank_lines = 0

    def feed(self, data: bytes) -> None:
        self._buffer += data

    @property
    def in_progress(self) -> bool:
        """A request has begun and has not ended."""
        return self._head is not None or bool(self._buffer)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer) + len(self._chunks)

    @property
    def expects_continue(self) -> bool:
        """The peer waits for `100 Continue` before it sends the body."""
        if self._head is None or self._buffer or self._chunks:
            return False
        return self._head[2].get(b"expect", b"").lower() == b"100-continue"

    def next_request(self) -> HttpRequest | None:
        """The next whole request, or None when more bytes are needed."""
        if self._head is None and not self._read_head():
            return None
        if self._body_bytes is None:
            body = self._read_chunks()
        elif len(self._buffer) >= self._body_bytes:
            body = bytes(self._buffer[: self._body_bytes])
            del self._buffer[: self._body_bytes]
        else:
            body = None
        if body is None or self._head is None:
            return None
        method, target, headers, keep_alive = self._head
        self._head, self._chunks, self._blank_lines = None, bytearray(), 0
        return HttpRequest(method, target, headers, body, keep_alive)

    def _read_head(self) -> bool:
        while self._buffer.startswith(b"\r\n"):
            del self._buffer[:2]
            self._blank_lines += 1
            if self._blank_lines > BLANK_LINES_MAX:
                raise HttpRequestRefused(400, "there are only blank lines")
        end = self._buffer.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX + 4)
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise HttpRequestRefused(431, "the head of the request is too long")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        found = _REQUEST_LINE.fullmatch(lines[0])
        if found is None:
            raise HttpRequestRefused(400, "the request line is not HTTP/1.1")
        headers = _headers(lines[1:])
        modern = found[3] == b"1"
        if modern and b"host" not in headers:
            raise HttpRequestRefused(400, "the request has no Host")
        if not modern and b"transfer-encoding" in headers:
            raise HttpRequestRefused(400, "HTTP/1.0 has no transfer encoding")
        self._body_bytes = _body_length(headers)
        if self._body_bytes is not None and self._body_bytes > self._body_bytes_max:
            raise self._too_long()
        options = headers.get(b"connection", b"").lower()
        keep_alive = b"close" not in options if modern else b"keep-alive" in options
        self._head = (found[1].decode(), found[2].decode(), headers, keep_alive)
        return True

    def _too_long(self) -> HttpRequestRefused:
        return HttpRequestRefused(413, f"the body has more than {self._body_bytes_max} bytes")

    def _read_chunks(self) -> bytes | None:
        while True:
            end = self._buffer.find(b"\r\n", 0, CHUNK_HEAD_BYTES_MAX + 2)
            if end < 0:
                if len(self._buffer) > CHUNK_HEAD_BYTES_MAX:
                    raise HttpRequestRefused(400, "a chunk's head is too long")
                return None
            found = _CHUNK_SIZE.fullmatch(self._buffer, 0, end)
            if found is None:
                raise HttpRequestRefused(400, "a chunk has no size")
            size = int(found[1], 16)
            if len(self._chunks) + size > self._body_bytes_max:
                raise self._too_long()
            if len(self._buffer) < end + 2 + size + 2:
                return None
            if self._buffer[end + 2 + size : end + 4 + size] != b"\r\n":
                raise HttpRequestRefused(400, "a chunk has another length, or there are trailers")
            if size == 0:
                del self._buffer[: end + 4]
                return bytes(self._chunks)
            self._chunks += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 4 + size]


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    if len(lines) > HEADERS_MAX:
        raise HttpRequestRefused(431, "the request has too many headers")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HttpRequestRefused(400, "a header can't be read")
        name = name.lower()
        value = value.strip(b" \t")
        if name in headers:
            if name in (b"content-length", b"transfer-encoding", b"host"):
                raise HttpRequestRefused(400, f"the header {name.decode()} comes twice")
            value = headers[name] + b", " + value
        headers[name] = value
    return headers


def _body_length(headers: dict[bytes, bytes]) -> int | None:
    length = headers.get(b"content-length")
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None:
        if length is not None:
            raise HttpRequestRefused(400, "the body has both a length and an encoding")
        if encoding.lower() != b"chunked":
            raise HttpRequestRefused(501, "the only transfer encoding is chunked")
        return None
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise HttpRequestRefused(400, "the content length is not a number")
    return int(length)


def response(
    status: int, body: bytes = b"", content_type: str = "", *, keep_alive: bool = True
) -> bytes:
    """A whole HTTP response. The content type may come from a user, so it is cleaned."""
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-length: {len(body)}\r\n"
    if content_type:
        clean = "".join(char for char in content_type if " " <= char <= "~")
        head += f"content-type: {clean}\r\n"
    if not keep_alive:
        head += "connection: close\r\n"
    return f"{head}\r\n".encode() + body


OK = response(200)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
