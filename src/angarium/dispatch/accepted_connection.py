"""What both ports share about a connection that the peer opened: bytes out, deadline, end."""

from __future__ import annotations

import asyncio
from typing import cast

from angarium.dispatch import security
from angarium.dispatch.errors import FrameInvalid
from angarium.dispatch.protocol import encode_error


class AcceptedConnection(asyncio.Protocol):
    """A peer that does not prove the token in time, or stops reading, is disconnected."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        # Close without a reply: the peer has stopped reading.
        self.abort()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _violated(self, error: FrameInvalid) -> None:
        """Count and log a violation of the protocol."""
        raise NotImplementedError

    def _close_with_error(self, error: FrameInvalid) -> None:
        self._violated(error)
        self.write(encode_error(error))
        self.close()

    def _start_deadline(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(security.HANDSHAKE_S_MAX, self._proof_overdue)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _proof_overdue(self) -> None:
        self._close_with_error(security.proof_overdue())
