"""A worker on plain sockets that knows two commands: PROCESS_MESSAGE (0) and ACK_MESSAGE (1).

    python worker.py --redis 127.0.0.1:6379 --port 9100

List it in ANGARIUM_DISPATCH__CONSUMERS. It shows how little a worker has to know: nothing but the
standard library, one thread for each dispatcher, no window, no refusals. Its results are delivered
at least once, because it stores them by itself and acknowledges afterwards.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import struct
import sys
import threading
from typing import Any, BinaryIO

HEADER = struct.Struct("!BBI")
PROCESS_MESSAGE, ACK_MESSAGE = 0, 1


def work(message: dict[str, Any]) -> dict[str, Any]:
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
            redis = Redis(options.redis)
            answers = ack_port(options.ack) if options.ack else connection
            while frame := read_frame(frames):
                command, payload = frame
                if command == PROCESS_MESSAGE and store(payload, redis, options):
                    answers.sendall(HEADER.pack(1, ACK_MESSAGE, 36) + payload[:36])
        except OSError as error:
            logging.warning("a dispatcher's connection ended: %s", error)


def store(payload: bytes, redis: Redis, options: argparse.Namespace) -> bool:
    """Whether the result is in the stream."""
    message_id, message = payload[:36].decode(), payload[37:]
    fields: list[object] = []
    try:
        for name, value in work(json.loads(message)).items():
            fields += (name, value if isinstance(value, str) else json.dumps(value))
    except (ValueError, TypeError, AttributeError) as error:
        logging.warning("message %s can't be processed: %s", message_id, error)
        return False
    own = ("message_id", message_id, "consumer_id", options.address)
    redis.call("XADD", options.stream, "*", *own, *fields)
    return True


def ack_port(address: str) -> socket.socket:
    connection = connect(address)

    def drain() -> None:
        while connection.recv(65_536):
            pass  # what comes back is not needed, but has to be read

    threading.Thread(target=drain, daemon=True).start()
    return connection


def read_frame(frames: BinaryIO) -> tuple[int, bytes] | None:
    header = frames.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    version, command, length = HEADER.unpack(header)
    payload = frames.read(length)
    return (command, payload) if version == 1 and len(payload) == length else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", default="127.0.0.1:6379")
    parser.add_argument("--stream", default="messages:processed")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ack", help="host:port of an ACK port, to be used instead of the link")
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
