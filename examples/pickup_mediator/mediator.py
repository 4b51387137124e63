"""A mediator in miniature: it keeps mail for recipients and hands it over when they come.

    angarium serve gateway                       # in one shell
    python examples/pickup_mediator/mediator.py  # in another

One client plays the mediator that senders reach, the other the one that the recipient's phone is
connected to. The phone is away at first, gets its mail when it comes, then live; it acknowledges
everything, goes, and finds what came meanwhile.
"""

from __future__ import annotations

import asyncio
import sys

from angarium.pickup.client import Delivery, PickupClient

CONNECTION = "phone-of-anna"
ANNA = "did:example:anna"


class Phone:
    """Shows what it gets, and tells the mediator to acknowledge."""

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

        print("the phone is away; two messages come")
        await send("one")
        await send("two")
        print(f"waiting: {await inside.get_available_message_count(CONNECTION)}")

        print("the phone opens its socket: the mediator starts a live session")
        await inside.add_live_session(CONNECTION, "session-1")
        await phone.receive(inside, 2)

        print("a message comes while it is connected")
        await send("three")
        await phone.receive(inside, 3)

        print("it goes away; another message comes; it asks for what it missed")
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
