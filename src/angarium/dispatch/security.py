"""TLS and token of worker connections, from the settings, and the deadlines of connections."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from angarium.dispatch.errors import TokenRefused
from angarium.dispatch.settings import DispatchSettings
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.settings import CommonSettings
from angarium.runtime.sockets import is_loopback

# Deadline for the TLS handshake, and again for the first frame or the proof of the token. All take
# milliseconds, and a port has a limited number of connections.
HANDSHAKE_S_MAX = 10.0
# Peers that sent HELLO send heartbeats each second. Others may have nothing to say for minutes.
IDLE_S_MAX = 600.0


def token(settings: CommonSettings) -> str | None:
    """None if no token is set, or an empty one, which would prove nothing."""
    secret = settings.group(DispatchSettings).token
    return None if secret is None else secret.get_secret_value() or None


def check_exposure(settings: CommonSettings, host: str, setting: str) -> None:
    """Refuse a port that other machines reach and that anybody may use. A token, or certificates
    that the other side must have, decide who may."""
    if is_loopback(host) or token(settings) is not None:
        return
    if settings.group(DispatchSettings).tls_authority is not None:
        return
    raise SettingInvalid(
        setting,
        f"{host!r} is reached from other machines, and no token is set",
        "set ANGARIUM_DISPATCH__TOKEN to the same secret on all dispatchers and workers, for "
        "example the output of `openssl rand -hex 32`, or listen on 127.0.0.1",
    )


def proof_overdue() -> TokenRefused:
    return TokenRefused(
        f"no proof of dispatch.token arrived within {HANDSHAKE_S_MAX:g} s: is the token set on the "
        "other side?"
    )


def tls_deadline_s(tls: ssl.SSLContext | None) -> float | None:
    return None if tls is None else HANDSHAKE_S_MAX


def server_tls(settings: CommonSettings) -> ssl.SSLContext | None:
    """For the side that listens. With `tls_authority` set, it requires a client certificate."""
    dispatch = settings.group(DispatchSettings)
    if not _is_configured(settings):
        return None
    if dispatch.tls_certificate is None:
        raise SettingInvalid(
            "ANGARIUM_DISPATCH__TLS_CERTIFICATE",
            "TLS is configured, and the side that listens has no certificate",
            "set it, and ANGARIUM_DISPATCH__TLS_KEY, to the paths of PEM files",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, settings)
    if dispatch.tls_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(settings: CommonSettings) -> ssl.SSLContext | None:
    """For the side that dials. It checks the certificate and the host name."""
    if not _is_configured(settings):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.group(DispatchSettings).tls_authority is None:
        context.load_default_certs()
    _load(context, settings)
    return context


def _is_configured(settings: CommonSettings) -> bool:
    dispatch = settings.group(DispatchSettings)
    return any((dispatch.tls_certificate, dispatch.tls_key, dispatch.tls_authority))


def _load(context: ssl.SSLContext, settings: CommonSettings) -> None:
    dispatch = settings.group(DispatchSettings)
    if dispatch.tls_authority is not None:
        with _error_names_setting("TLS_AUTHORITY", dispatch.tls_authority):
            context.load_verify_locations(dispatch.tls_authority)
    if dispatch.tls_certificate is not None:
        with _error_names_setting("TLS_CERTIFICATE", dispatch.tls_certificate):
            context.load_cert_chain(dispatch.tls_certificate, dispatch.tls_key)


@contextmanager
def _error_names_setting(setting: str, path: Path) -> Iterator[None]:
    """Raise an error of the TLS library as an error of the setting."""
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise SettingInvalid(
            f"ANGARIUM_DISPATCH__{setting}",
            f"{path} can't be used ({error.strerror or error})",
            "name a readable PEM file; a certificate needs its key",
        ) from None
