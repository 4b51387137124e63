"""The agent's outbound transport: what it sends, to the deliverer or, as a mediator, to the lists.

The agent hears of an error when Redis did not take the message, and may send it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from angarium.routing.acapy.agent import agent_class
from angarium.routing.acapy.link import Link
from angarium.routing.envelope import read_envelope
from angarium.runtime.errors import AngariumError

_Base: Any = agent_class("transport.outbound.base", "BaseOutboundTransport")
_Error: Any = agent_class("transport.outbound.base", "OutboundTransportError", Exception)


class AngariumOutbound(_Base):  # type: ignore[misc]
    """Everything the agent sends, to the deliverer; as a mediator, to its recipients' lists."""

    schemes = ("redis",)
    is_external = True

    def __init__(self, root_profile: Any = None, **kwargs: Any) -> None:
        super().__init__(root_profile=root_profile, **kwargs)
        self.root_profile = root_profile

    async def start(self) -> None:
        await Link.of(self.root_profile).enter()

    async def stop(self) -> None:
        await Link.of(self.root_profile).leave()

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
        link = Link.of(self.root_profile)
        payload = outbound_message.payload
        binary = isinstance(payload, bytes)
        headers = {str(name): str(value) for name, value in (metadata or {}).items()}
        if api_key is not None:
            headers["x-api-key"] = api_key
        headers["Content-Type"] = _content_type(profile) if binary else "application/json"
        body = payload if binary else payload.encode()
        try:
            if link.config.is_mediator:
                envelope = read_envelope(body, link.limits.recip_key_bytes_max)
                store = await link.routing()
                await store.process_payload_recip_key(envelope.recip_key, body, None)
            else:
                await (await link.outbound()).push(endpoint, body, headers)
        except AngariumError as error:
            raise _Error(f"not queued: {error}") from error


def _content_type(profile: Any) -> str:
    if profile.settings.get("emit_new_didcomm_mime_type"):
        return "application/didcomm-envelope-enc"
    return "application/ssi-agent-wire"
