"""The module's rules out of the settings: what its roles share."""

from __future__ import annotations

import ssl

from angarium.routing.store import Rules
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.settings import Layout, Settings


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
