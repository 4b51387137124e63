"""Who may speak to the gateway, and whose connections they may see. Pure, but for the files.

A client shows a bearer token or a certificate; either names its tenant. Without tokens and without
a certificate authority everybody is the one default tenant, which is allowed on loopback as long as
there have never been tokens, or where the operator says so.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Mapping
from typing import Any

from angarium.pickup.model import DEFAULT_TENANT, is_tenant
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.setting_groups.pickup import PickupSettings
from angarium.runtime.sockets import is_loopback

TOKENS = "ANGARIUM_PICKUP__TOKENS"


class Access:
    def __init__(self, settings: PickupSettings) -> None:
        self._tenants = _tenants(settings)
        self._certificates = settings.tls_client_ca is not None
        self._closed = False

    @property
    def open(self) -> bool:
        return self.nobody_known and not self._closed

    @property
    def nobody_known(self) -> bool:
        """Neither tokens nor certificates are set."""
        return not self._tenants and not self._certificates

    def close(self) -> None:
        """From now on nobody comes in without a token or a certificate."""
        self._closed = True

    def by_token(self, authorization: str | None) -> str | None:
        """The tenant of an Authorization header; None: refused, or left to the certificate."""
        if self.open:
            return DEFAULT_TENANT
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        shown = _digest(token.strip())
        found = None
        for digest, tenant in self._tenants.items():
            # All are compared, so that the time tells nothing.
            if hmac.compare_digest(shown, digest):
                found = tenant
        return found

    @property
    def certificates(self) -> bool:
        return self._certificates

    def by_certificate(self, certificate: Mapping[str, Any] | None) -> str | None:
        """The tenant that a verified certificate names."""
        for part in (certificate or {}).get("subject", ()):
            for name, value in part:
                if name == "commonName" and is_tenant(value):
                    return str(value)
        return None


def check(settings: PickupSettings) -> None:
    """Refuse what would leave the gateway open, or can't work, before anything starts."""
    if Access(settings).open and not settings.anonymous and not is_loopback(settings.host):
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
            # Without the entry itself: it is a secret.
            raise SettingInvalid(TOKENS, "holds an entry that is not tenant:token", "correct it")
        found[_digest(token)] = tenant
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
