"""Proof that a side knows the shared token, without the token on the wire. Pure.

Each side says HELLO with a random nonce. A proof is an HMAC over a label, which names the port and
the role of the side that proves, and over both HELLO frames. So a proof is good on one connection,
for one role, and for exactly the HELLOs that were exchanged. `docs/protocols/dispatch.md` is the
contract.
"""

from __future__ import annotations

import hmac
from enum import StrEnum

from angarium.dispatch.frames import Command, encode

NONCE_BYTES = 32
NONCE_CHARACTERS_MIN = 32  # 16 bytes in hexadecimal digits
NONCE_CHARACTERS_MAX = 128
PROOF_BYTES = 32


class Role(StrEnum):
    DISPATCHER = "dispatcher"
    WORKER = "worker"


def proof_of(token: str, prover: Role, dialler: Role, listener_hello: bytes, hello: bytes) -> bytes:
    """`listener_hello` and `hello` are the payloads of the listener's and the dialler's HELLO."""
    port = "worker-port" if dialler is Role.DISPATCHER else "ack-port"
    label = f"angarium-dispatch {port} {prover}\0".encode()
    # Whole frames: their headers hold the version, and the lengths that keep the two apart.
    said = encode(Command.HELLO, listener_hello) + encode(Command.HELLO, hello)
    return hmac.digest(token.encode(errors="surrogateescape"), label + said, "sha256")


def same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)
