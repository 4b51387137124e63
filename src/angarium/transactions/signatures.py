"""Signatures of webhooks by the Standard Webhooks scheme: HMAC-SHA256 (`v1`), Ed25519 (`v1a`).

Pure: what is signed is «id.timestamp.body», and the receiver checks it with the shared secret or
the public key. Several signatures stand beside each other, so keys can be changed without a gap.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable

SECRET_PREFIX, PRIVATE_PREFIX = "whsec_", "whsk_"
SECRET_BYTES_MIN = 24

Sign = Callable[[bytes], str]


class KeyInvalid(ValueError):
    """The key is not what its prefix says."""


def hmac_signer(secret: str) -> Sign:
    key = _key(secret, SECRET_PREFIX)
    if len(key) < SECRET_BYTES_MIN:
        raise KeyInvalid(f"a secret has at least {SECRET_BYTES_MIN} bytes")

    def sign(content: bytes) -> str:
        return f"v1,{base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()}"

    return sign


def ed25519_signer(private_key: str) -> Sign:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = _key(private_key, PRIVATE_PREFIX)
    if len(key) not in (32, 64):
        raise KeyInvalid("an Ed25519 key has 32 bytes, or 64 with its public half")
    signer = Ed25519PrivateKey.from_private_bytes(key[:32])

    def sign(content: bytes) -> str:
        return f"v1a,{base64.b64encode(signer.sign(content)).decode()}"

    return sign


def headers_of(signers: list[Sign], id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    content = f"{id}.{timestamp_s}.".encode() + body
    headers = {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp_s),
    }
    if signers:
        headers["webhook-signature"] = " ".join(sign(content) for sign in signers)
    return headers


def _key(text: str, prefix: str) -> bytes:
    if not text.startswith(prefix):
        raise KeyInvalid(f"it must begin with {prefix}")
    try:
        return base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raise KeyInvalid(f"what follows {prefix} must be base64") from None
