"""A small mediator: it queues messages for a recipient and delivers them.

    angarium serve gateway                       # in one shell
    python examples/pickup_mediator/mediator.py  # in another

Senders reach one client; the recipient's phone is connected to the other. The phone is offline at
first. When it connects it gets its messages, then further ones live. It acknowledges all of them,
disconnects, and later takes the message that it missed.
"""

from __future__ import annotations

import asyncio
import sys

from angarium.pickup.client import Delivery, PickupClient

CONNECTION = "phone-of-anna"
ANNA = "did:example:anna"


class Phone:
    """Shows each message and acknowledges it at the mediator."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.arrived: asyncio.Queue[Delivery] = asyncio.Queue()

    async def receive(self, mediator: PickupClient, count: int) -> None:
        while len(self.shown) < count:
            delivery = await self.arrived.get()
            for message in delivery.messages:
                print(f"  phone shows: {message.encrypted_message['text']}")
                self.shown.append(message.encrypted_message["text"])
            ids = [message.id for message in delivery.messages]
            await mediator.remove_messages(delivery.connection_id, ids)


async def main(url: str) -> list[str]:
    phone = Phone()
    async with (
        PickupClient(url) as outside,
        PickupClient(url, on_messages=phone.arrived.put_nowait) as inside,
    ):

        async def send(text: str) -> None:
            await outside.add_message(CONNECTION, [ANNA], {"text": text})

        print("the phone is offline; two messages arrive")
        await send("one")
        await send("two")
        print(f"waiting: {await inside.get_available_message_count(CONNECTION)}")

        print("the phone connects: the mediator opens a live session")
        await inside.add_live_session(CONNECTION, "session-1")
        await phone.receive(inside, 2)

        print("a message arrives while the phone is connected")
        await send("three")
        await phone.receive(inside, 3)

        print("the phone disconnects, a message arrives, and the phone takes it later")
        await inside.remove_live_session(CONNECTION, "session-1")
        await send("four")
        for message in await inside.take_from_queue(CONNECTION, recipient_did=ANNA):
            print(f"  phone shows: {message.encrypted_message['text']}")
            phone.shown.append(message.encrypted_message["text"])
            await inside.remove_messages(CONNECTION, [message.id])
        print(f"waiting: {await inside.get_available_message_count(CONNECTION)}")
    return phone.shown


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:3100/"))
