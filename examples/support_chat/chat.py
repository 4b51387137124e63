"""A user of the support chat: asks two questions, picks up the four replies, removes each.

python chat.py [GATEWAY_PORT]       # 3100 unless another is given
"""

from __future__ import annotations

import asyncio
import sys

from app import PIPELINE, app  # type: ignore[import-not-found]

from angarium.pickup.client import PickupClient


async def main(gateway: str) -> None:
    # Redis as the settings name it; without any, the embedded one in .angarium of this folder.
    async with app.client as client, PickupClient(gateway) as recipient:
        await client.transactions.load(PIPELINE)
        await recipient.add_live_session("anna", "session-1")
        for question in ("What is the question?", "And the answer?"):
            await client.publish({"user": "anna", "question": question})
        left = 4
        async for delivery in recipient.deliveries():
            for message in delivery.messages:
                print(message.encrypted_message, flush=True)
            # Removing is the acknowledgement: the next reply may go.
            await recipient.remove_messages("anna", [each.id for each in delivery.messages])
            left -= len(delivery.messages)
            if not left:
                return


if __name__ == "__main__":
    asyncio.run(main(f"ws://127.0.0.1:{sys.argv[1] if sys.argv[1:] else 3100}/"))
