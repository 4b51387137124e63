"""A worker on plain sockets that knows two commands: PROCESS_MESSAGE (0) and ACK_MESSAGE (1).

    python worker.py --redis 127.0.0.1:6379 --port 9100

List it in ANGARIUM_DISPATCH__CONSUMERS. It shows how little a worker has to know: nothing but the
standard library, one thread for each dispatcher, no window, no refusals. Its results are delivered
at least once, because it stores them by itself and acknowledges afterwards. Where the dispatchers
have a token (--token), it also takes part in the proof of it: HELLO (3), HEARTBEAT (4), PROOF (6).
"""

from __future__ import annotations

import argparse
import hmac
import json
import logging
import secrets
import socket
import struct
import sys
import threading
from typing import Any, BinaryIO

HEADER = struct.Struct("!BBI")
PROCESS_MESSAGE, ACK_MESSAGE, HELLO, HEARTBEAT, ERROR, PROOF = 0, 1, 3, 4, 5, 6
FRAME_BYTES_MAX = 1024 * 1024
# Before a dispatcher has proved that it knows the token.
UNTRUSTED_BYTES_MAX = 8192
HANDSHAKE_S = 10.0


def work(message: dict[str, Any]) -> dict[str, Any] | None:
    return {**message, "worker": "plain"}


class Redis:
    """As much of Redis' protocol as XADD needs."""

    def __init__(self, address: str) -> None:
        self._stream = connect(address).makefile("rwb")

    def call(self, *command: object) -> bytes:
        parts = [b"*%d\r\n" % len(command)]
        for each in command:
            data = str(each).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        self._stream.write(b"".join(parts))
        self._stream.flush()
        line = self._stream.readline()
        if not line.endswith(b"\r\n") or line.startswith(b"-"):
            raise ConnectionError(f"Redis answered {line!r}")
        return self._stream.read(int(line[1:]) + 2)[:-2] if line.startswith(b"$") else line[1:-2]


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def serve_dispatcher(connection: socket.socket, options: argparse.Namespace) -> None:
    """Until the dispatcher goes. What fails is not acknowledged, and goes to another worker. When
    Redis or the ACK port goes, the connection ends too, and the dispatcher dials again."""
    with connection, connection.makefile("rb") as frames:
        try:
            if options.token:
                prove(connection, frames, options, dials=False)
            redis = Redis(options.redis)
            answers = ack_port(options) if options.ack else connection
            while frame := read_frame(frames):
                command, payload = frame
                if command == PROCESS_MESSAGE and store(payload, redis, options):
                    answers.sendall(frame_of(ACK_MESSAGE, payload[:36]))
                elif command == HEARTBEAT:  # comes only to one that has said HELLO
                    connection.sendall(frame_of(HEARTBEAT))
        except OSError as error:
            logging.warning("a dispatcher's connection ended: %s", error)


def store(payload: bytes, redis: Redis, options: argparse.Namespace) -> bool:
    """Whether the result is in the stream."""
    message_id, message = payload[:36].decode(), payload[37:]
    fields: list[object] = []
    try:
        for name, value in (work(json.loads(message)) or {}).items():
            fields += (name, value if isinstance(value, str) else json.dumps(value))
    except (ValueError, TypeError, AttributeError) as error:
        logging.warning("message %s can't be processed: %s", message_id, error)
        return False
    own = ("message_id", message_id, "consumer_id", options.address)
    redis.call("XADD", options.stream, "*", *own, *fields)
    return True


def prove(
    connection: socket.socket, frames: BinaryIO, options: argparse.Namespace, *, dials: bool
) -> None:
    """Both sides know the token, or ConnectionError. The side that dials proves it first."""
    connection.settimeout(HANDSHAKE_S)
    nonce = secrets.token_hex(32)
    own = frame_of(HELLO, json.dumps({"consumer_id": options.address, "nonce": nonce}).encode())
    connection.sendall(own)
    other = frame_of(HELLO, expect(HELLO, frames))
    said = other + own if dials else own + other  # the HELLO of the side that listens comes first

    def proof(role: str) -> bytes:
        label = f"angarium-dispatch {'ack' if dials else 'worker'}-port {role}\0".encode()
        return hmac.digest(options.token.encode(), label + said, "sha256")

    if dials:
        connection.sendall(frame_of(PROOF, proof("worker")))
    if not hmac.compare_digest(expect(PROOF, frames), proof("dispatcher")):
        connection.sendall(frame_of(ERROR, b"token_refused: the proof is wrong"))
        raise ConnectionError("the proof is wrong: the tokens differ")
    if not dials:
        connection.sendall(frame_of(PROOF, proof("worker")))
    connection.settimeout(None)


def expect(wanted: int, frames: BinaryIO) -> bytes:
    frame = read_frame(frames, UNTRUSTED_BYTES_MAX)
    if frame is None or frame[0] != wanted:
        raise ConnectionError(f"the proof of the token was broken off: {frame}")
    return frame[1]


def ack_port(options: argparse.Namespace) -> socket.socket:
    connection = connect(options.ack)
    if options.token:
        prove(connection, connection.makefile("rb"), options, dials=True)

    def drain() -> None:
        while connection.recv(65_536):
            pass  # what comes back is not needed, but has to be read

    threading.Thread(target=drain, daemon=True).start()
    return connection


def frame_of(command: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(1, command, len(payload)) + payload


def read_frame(frames: BinaryIO, bytes_max: int = FRAME_BYTES_MAX) -> tuple[int, bytes] | None:
    header = frames.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    version, command, length = HEADER.unpack(header)
    if version != 1 or length > bytes_max:
        return None
    payload = frames.read(length)
    return (command, payload) if len(payload) == length else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", default="127.0.0.1:6379")
    parser.add_argument("--stream", default="messages:processed")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ack", help="host:port of an ACK port, to be used instead of the link")
    parser.add_argument("--token", default="", help="the secret in dispatch.token")
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", options.port)) as listener:
        port = listener.getsockname()[1]
        options.address = f"127.0.0.1:{port}"
        ready = {"role": "plain-worker", "ready": True, "ports": {"worker": port}}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            serving = threading.Thread(
                target=serve_dispatcher, args=(connection, options), daemon=True
            )
            serving.start()


if __name__ == "__main__":
    main()
