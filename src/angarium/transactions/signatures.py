"""Webhook signatures by the Standard Webhooks scheme: HMAC-SHA256 (`v1`) and Ed25519 (`v1a`).

No I/O. The signed content is «id.timestamp.body». The receiver verifies it with the shared secret
or the public key. A request can carry several signatures, so keys can be replaced without a gap.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable

SECRET_PREFIX, PRIVATE_PREFIX = "whsec_", "whsk_"
SECRET_BYTES_MIN = 24

Signer = Callable[[bytes], str]


class SigningKeyInvalid(ValueError):
    """The key does not have the form that its prefix states."""


def hmac_signer(secret: str) -> Signer:
    key = _key(secret, SECRET_PREFIX)
    if len(key) < SECRET_BYTES_MIN:
        raise SigningKeyInvalid(f"a secret must have at least {SECRET_BYTES_MIN} bytes")

    def sign(content: bytes) -> str:
        return f"v1,{base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()}"

    return sign


def ed25519_signer(private_key: str) -> Signer:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = _key(private_key, PRIVATE_PREFIX)
    if len(key) not in (32, 64):
        raise SigningKeyInvalid("an Ed25519 key must have 32 bytes, or 64 with its public half")
    signer = Ed25519PrivateKey.from_private_bytes(key[:32])

    def sign(content: bytes) -> str:
        return f"v1a,{base64.b64encode(signer.sign(content)).decode()}"

    return sign


def headers_of(signers: list[Signer], id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
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
        raise SigningKeyInvalid(f"the key must begin with {prefix}")
    try:
        return base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raise SigningKeyInvalid(f"the text after {prefix} must be base64") from None
