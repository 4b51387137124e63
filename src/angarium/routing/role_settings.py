"""The settings that the module's roles share: checked, and in the form that the roles use."""

from __future__ import annotations

import ssl

from angarium.routing.limits import RoutingLimits
from angarium.routing.settings import Layout, RoutingSettings
from angarium.routing.store import RoutingRules, RoutingStore
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.settings import CommonSettings


def routing_rules(settings: CommonSettings) -> RoutingRules:
    routing = settings.group(RoutingSettings)
    return RoutingRules(
        layout=routing.layout.value,
        stale_after_ms=routing.stale_after_ms,
        instance_keep_ms=routing.instance_retention_ms,
        key_keep_ms=routing.recip_key_retention_ms,
        key_messages_max=settings.limits_of(RoutingLimits).recip_key_messages_max,
    )


def routing_store(runtime: Runtime) -> RoutingStore:
    """The store by the settings, for `Runtime.store`."""
    return RoutingStore(runtime, routing_rules(runtime.settings))


def check_layout(settings: CommonSettings) -> None:
    """The published names have no hash tag, so a cluster can't keep them in one slot."""
    if settings.group(RoutingSettings).layout is Layout.ACAPY and settings.partitions > 1:
        raise SettingInvalid(
            "ANGARIUM_ROUTING__LAYOUT",
            f"'acapy' can't be spread over {settings.partitions} partitions",
            "use one partition on a server that is no cluster, or the layout native",
        )


def server_tls(settings: CommonSettings) -> ssl.SSLContext | None:
    """The TLS context of all the relay's listeners; None without a certificate."""
    routing, setting = settings.group(RoutingSettings), "ANGARIUM_ROUTING__TLS_CERTIFICATE"
    if routing.tls_certificate is None:
        if routing.tls_key is not None:
            raise SettingInvalid(setting, "is missing", "name the certificate file")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without this, a key with a password makes the role wait for somebody to type it.
        context.load_cert_chain(routing.tls_certificate, routing.tls_key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        problem = f"the certificate can't be used: {error}"
        raise SettingInvalid(setting, problem, "name readable PEM files") from None
    return context
