"""What both ports share about a connection that the peer opened: bytes out, deadlines, end."""

from __future__ import annotations

import asyncio
from typing import cast

from angarium.dispatch import security
from angarium.dispatch.errors import ConnectionSilent, FrameInvalid
from angarium.dispatch.protocol import ConnectionProtocol, encode_error


class AcceptedConnection(asyncio.Protocol):
    """A peer that sends no first frame in time, is silent for too long, or stops reading, is
    disconnected. With a token set, the first frames must prove it."""

    def __init__(self, protocol: ConnectionProtocol) -> None:
        self._protocol: ConnectionProtocol = protocol
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self.spoke = False  # sent a valid frame, and the proof where a token is set
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._heard_s = self._loop.time()
        self._start_timer()

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

    @property
    def silence_s_max(self) -> float:
        """How long the peer may be silent from now on."""
        if self.spoke or (self._protocol.authenticated and self._may_wait):
            return security.IDLE_S_MAX
        return security.HANDSHAKE_S_MAX

    # Whether a peer may take its time for the first frame, where no token is set.
    _may_wait = False

    def _violated(self, error: FrameInvalid) -> None:
        """Count and log a violation of the protocol."""
        raise NotImplementedError

    def _close_with_error(self, error: FrameInvalid) -> None:
        self._violated(error)
        self.write(encode_error(error))
        self.close()

    def _heard(self, *, frames: bool) -> bool:
        """Bytes arrived, with or without whole frames. True if the peer speaks for the first
        time, which begins its longer deadline."""
        self._heard_s = self._loop.time()
        if self.spoke or not frames or not self._protocol.authenticated or self._protocol.violated:
            return False
        self.spoke = True
        self._start_timer()
        return True

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(self.silence_s_max, self._check_silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_silence(self) -> None:
        left_s = self._heard_s + self.silence_s_max - self._loop.time()
        if self.spoke and left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_silence)
        elif not self._protocol.authenticated:
            self._close_with_error(security.proof_overdue())
        else:
            # No ERROR frame: a peer that knows only the first two commands may be at the other end.
            seconds = f"{self.silence_s_max:g} s"
            self._violated(ConnectionSilent(f"nothing arrived within {seconds}; it may dial again"))
            self.close()
