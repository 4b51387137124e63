"""Decides which tenant a client of the gateway belongs to. Reads certificate files, else pure.

A client shows a bearer token or a certificate; either names its tenant. Without tokens and without
a certificate authority every client is the tenant `default`. The gateway allows that on loopback
while no token has ever been set, or with the setting `anonymous`.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Mapping
from typing import Any

from angarium.pickup.model import DEFAULT_TENANT, is_tenant
from angarium.pickup.settings import PickupSettings
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.sockets import is_loopback

TOKENS = "ANGARIUM_PICKUP__TOKENS"


class GatewayAccess:
    def __init__(self, settings: PickupSettings) -> None:
        self._tenants = _tenants(settings)
        self._certificates = settings.tls_client_ca is not None
        self._closed = False

    @property
    def open(self) -> bool:
        return not self.has_credentials and not self._closed

    @property
    def has_credentials(self) -> bool:
        """Tokens or a certificate authority are set."""
        return bool(self._tenants) or self._certificates

    def close(self) -> None:
        """Refuse every client without a token or a certificate from now on."""
        self._closed = True

    def by_token(self, authorization: str | None) -> str | None:
        """The tenant of an Authorization header, or None; a certificate may still name one."""
        if self.open:
            return DEFAULT_TENANT
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        shown = _digest(token.strip())
        found = None
        for digest, tenant in self._tenants.items():
            # All are compared, so the time reveals nothing about the tokens.
            if hmac.compare_digest(shown, digest):
                found = tenant
        return found

    @property
    def certificates(self) -> bool:
        return self._certificates

    def by_certificate(self, certificate: Mapping[str, Any] | None) -> str | None:
        """The common name of a verified certificate, if it can be a tenant."""
        for part in (certificate or {}).get("subject", ()):
            for name, value in part:
                if name == "commonName" and is_tenant(value):
                    return str(value)
        return None


def check(settings: PickupSettings) -> None:
    """Refuse settings that admit everybody by accident, and certificates that can't be used."""
    if GatewayAccess(settings).open and not settings.anonymous and not is_loopback(settings.host):
        raise SettingInvalid(
            TOKENS,
            f"the gateway would listen on {settings.host} for everybody",
            "give tokens as tenant:token, or set ANGARIUM_PICKUP__ANONYMOUS=true",
        )
    tls_context(settings)


def tls_context(settings: PickupSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None:
        if settings.tls_client_ca is not None or settings.tls_key is not None:
            raise SettingInvalid(
                "ANGARIUM_PICKUP__TLS_CERTIFICATE", "is missing", "name the certificate file"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            # A client with a token needs no certificate.
            context.verify_mode = ssl.CERT_OPTIONAL if settings.tokens else ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        problem = f"the certificates can't be used: {error}"
        raise SettingInvalid(
            "ANGARIUM_PICKUP__TLS_CERTIFICATE", problem, "name readable PEM files"
        ) from None
    return context


def _tenants(settings: PickupSettings) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for entry in settings.tokens:
        tenant, _, token = entry.get_secret_value().partition(":")
        if not is_tenant(tenant) or not token:
            # The entry is a secret, so the message does not contain it.
            raise SettingInvalid(TOKENS, "holds an entry that is not tenant:token", "correct it")
        found[_digest(token)] = tenant
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
