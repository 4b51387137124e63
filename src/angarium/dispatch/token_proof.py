"""Proof that a side knows the shared token, without sending the token. Does no I/O.

Each side sends a HELLO with a random nonce. A proof is an HMAC over a label and over both HELLO
frames. The label names the port and the role of the side that proves. So a proof is valid on one
connection, for one role, and for exactly the HELLO frames of that connection.
`docs/protocols/dispatch.md` is the contract.
"""

from __future__ import annotations

import hmac
from enum import StrEnum

from angarium.dispatch.frames import Command, encode

NONCE_BYTES = 32
NONCE_CHARACTERS_MIN = 32  # 16 bytes in hexadecimal digits
NONCE_CHARACTERS_MAX = 128


class ConnectionRole(StrEnum):
    DISPATCHER = "dispatcher"
    WORKER = "worker"


def compute_proof(
    token: str, prover: ConnectionRole, dialler: ConnectionRole, listener_hello: bytes, hello: bytes
) -> bytes:
    """`listener_hello` and `hello` are the payloads of the listener's and the dialler's HELLO."""
    port = "worker-port" if dialler is ConnectionRole.DISPATCHER else "ack-port"
    label = f"angarium-dispatch {port} {prover}\0".encode()
    # Whole frames: their headers contain the version, and the lengths that separate the two.
    frames = encode(Command.HELLO, listener_hello) + encode(Command.HELLO, hello)
    return hmac.digest(token.encode(errors="surrogateescape"), label + frames, "sha256")
