"""F63: the pickup client sends its token only to the gateway that it was given."""

from __future__ import annotations

import asyncio

import pytest

from angarium.pickup.client import GatewayUnreachable, PickupClient
from tests.runtime.outbound_peer import EMPTY, Peer, serving


async def test_a_redirect_does_not_carry_the_token_to_another_host() -> None:
    async def stranger(
        peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await peer.take(reader)
        writer.write(EMPTY)

    async with serving(stranger) as other:

        async def redirect(
            peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await peer.take(reader)
            location = other.url.replace("http", "ws")
            lines = ("HTTP/1.1 302 Found", f"location: {location}", "content-length: 0", "", "")
            writer.write("\r\n".join(lines).encode())

        async with serving(redirect) as gateway:
            url = gateway.url.replace("http", "ws")
            with pytest.raises(GatewayUnreachable):
                async with PickupClient(url, token="s3cret", call_timeout_s=1.0):
                    pass
    assert gateway.heads
    assert all("bearer s3cret" in head for head in gateway.heads)
    assert other.heads == []
