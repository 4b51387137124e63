"""TLS and the token of worker connections, as the settings say, and the time for both."""

from __future__ import annotations

import ssl
from pathlib import Path

from angarium.dispatch.errors import TokenRefused
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.settings import Settings

# For the other side to prove that it knows the token, and before that for the TLS handshake:
# round trips of milliseconds, and the places of a port are few.
HANDSHAKE_S_MAX = 10.0


def token(settings: Settings) -> str | None:
    """None where none is set; an empty one would prove nothing."""
    secret = settings.dispatch.token
    return None if secret is None else secret.get_secret_value() or None


def proof_missing() -> TokenRefused:
    return TokenRefused(
        f"no proof of dispatch.token came within {HANDSHAKE_S_MAX:g} s: is the token set on the "
        "other side?"
    )


def tls_deadline_s(tls: ssl.SSLContext | None) -> float | None:
    return None if tls is None else HANDSHAKE_S_MAX


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    """For the side that listens. With an authority, the other side must show a certificate."""
    dispatch = settings.dispatch
    if not _wanted(settings):
        return None
    if dispatch.tls_certificate is None:
        raise SettingInvalid(
            "ANGARIUM_DISPATCH__TLS_CERTIFICATE",
            "TLS is asked for, and the side that listens has no certificate",
            "name its file, and that of its key",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, settings)
    if dispatch.tls_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(settings: Settings) -> ssl.SSLContext | None:
    """For the side that dials: it checks certificate and host name."""
    if not _wanted(settings):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.dispatch.tls_authority is None:
        context.load_default_certs()
    _load(context, settings)
    return context


def _wanted(settings: Settings) -> bool:
    dispatch = settings.dispatch
    return any((dispatch.tls_certificate, dispatch.tls_key, dispatch.tls_authority))


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    dispatch = settings.dispatch
    if dispatch.tls_authority is not None:
        with _named("TLS_AUTHORITY", dispatch.tls_authority):
            context.load_verify_locations(dispatch.tls_authority)
    if dispatch.tls_certificate is not None:
        with _named("TLS_CERTIFICATE", dispatch.tls_certificate):
            context.load_cert_chain(dispatch.tls_certificate, dispatch.tls_key)


class _named:  # noqa: N801  reads as a verb where it is used
    """Turns what the TLS library says into an error of the setting."""

    def __init__(self, setting: str, path: Path) -> None:
        self._setting, self._path = f"ANGARIUM_DISPATCH__{setting}", path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | ssl.SSLError):
            problem = f"{self._path} can't be used ({error.strerror or error})"
            fix = "name a readable PEM file; a certificate needs its key"
            raise SettingInvalid(self._setting, problem, fix) from None
