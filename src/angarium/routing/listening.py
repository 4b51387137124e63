"""Sockets to listen on, and the room's rules out of the settings: what its roles share."""

from __future__ import annotations

import errno
import socket
import ssl

from angarium.core.errors import SettingInvalid
from angarium.core.settings import Layout, Settings
from angarium.routing.store import Rules

BACKLOG = 1024


def rules_of(settings: Settings) -> Rules:
    return Rules(
        layout=settings.routing.layout.value, stale_after_ms=settings.routing.stale_after_ms
    )


def check_layout(settings: Settings) -> None:
    """Published names carry no hash tag, so they can't share a slot of a cluster."""
    if settings.routing.layout is Layout.ACAPY and settings.partitions > 1:
        raise SettingInvalid(
            "ANGARIUM_ROUTING__LAYOUT",
            f"'acapy' can't be spread over {settings.partitions} partitions",
            "use one partition on a server that is no cluster, or the layout native",
        )


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    """For the relay's listeners, all of them, when a certificate is set."""
    routing, setting = settings.routing, "ANGARIUM_ROUTING__TLS_CERTIFICATE"
    if routing.tls_certificate is None:
        if routing.tls_key is not None:
            raise SettingInvalid(setting, "is missing", "name the certificate file")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A key that asks for a password would have the role wait for somebody to type one.
        context.load_cert_chain(routing.tls_certificate, routing.tls_key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        problem = f"the certificate can't be used: {error}"
        raise SettingInvalid(setting, problem, "name readable PEM files") from None
    return context


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; an address that can't be had is an error of its setting."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise SettingInvalid(
            setting, f"the address {host!r} can't be used", "use an address of this machine"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        problem = "is taken" if taken else f"can't be listened on ({error.strerror})"
        raise SettingInvalid(
            setting, f"port {port} on {host} {problem}", "set another port (0 takes any free one)"
        ) from error
    return listener
