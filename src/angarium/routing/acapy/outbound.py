"""The agent's outbound transport: queues messages for the deliverer, or as a mediator for keys.

When Redis does not accept a message, the agent gets an error and may send the message again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from angarium.routing.acapy.agent import agent_class
from angarium.routing.acapy.plugin_runtime import PluginRuntime
from angarium.routing.envelope import read_envelope
from angarium.runtime.errors import AngariumError

_Base: Any = agent_class("transport.outbound.base", "BaseOutboundTransport")
_Error: Any = agent_class("transport.outbound.base", "OutboundTransportError", Exception)


class AngariumOutbound(_Base):  # type: ignore[misc]
    """Queues for the deliverer; in mediator mode, for the recipient key of the envelope."""

    schemes = ("redis",)
    is_external = True

    def __init__(self, root_profile: Any = None, **kwargs: Any) -> None:
        super().__init__(root_profile=root_profile, **kwargs)
        self.root_profile = root_profile

    async def start(self) -> None:
        await PluginRuntime.of(self.root_profile).enter()

    async def stop(self) -> None:
        await PluginRuntime.of(self.root_profile).leave()

    async def handle_message(
        self,
        profile: Any,
        outbound_message: Any,
        endpoint: str,
        metadata: Mapping[str, Any] | None = None,
        api_key: str | None = None,
    ) -> None:
        if not endpoint:
            raise _Error("No endpoint provided")
        plugin = PluginRuntime.of(self.root_profile)
        payload = outbound_message.payload
        binary = isinstance(payload, bytes)
        headers = {str(name): str(value) for name, value in (metadata or {}).items()}
        if api_key is not None:
            headers["x-api-key"] = api_key
        headers["Content-Type"] = _content_type(profile) if binary else "application/json"
        body = payload if binary else payload.encode()
        try:
            if plugin.config.is_mediator:
                envelope = read_envelope(body, plugin.limits.recip_key_bytes_max)
                store = await plugin.routing()
                queued = store.process_payload_recip_key(envelope.recip_key, body, None)
                if await queued == "full":
                    raise store.queue_full()
            else:
                outbound = await plugin.outbound()
                if await outbound.push(endpoint, body, headers) == "full":
                    raise outbound.queue_full()
        except AngariumError as error:
            raise _Error(f"not queued: {error}") from error


def _content_type(profile: Any) -> str:
    if profile.settings.get("emit_new_didcomm_mime_type"):
        return "application/didcomm-envelope-enc"
    return "application/ssi-agent-wire"
