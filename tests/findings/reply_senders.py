"""Applications of F50: each has one reply sender, which prints what it sends, one line each."""

from __future__ import annotations

from angarium import Angarium
from angarium.conversations.model import OutgoingReply

app, other = Angarium(), Angarium()


@app.reply_sender()
async def send(reply: OutgoingReply) -> None:
    print(f"default {reply.response_id}", flush=True)


@other.reply_sender("other")
async def send_other(reply: OutgoingReply) -> None:
    print(f"other {reply.response_id}", flush=True)
