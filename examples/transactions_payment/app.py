"""A payment: charge a card, wait for the bank's callback, tell the shop by webhook.

angarium up app:app                            # in this folder, in one terminal
angarium pipeline load payment.toml            # in another, and then
angarium transactions start payment --data '{"amount": 42}' --webhook https://shop.example/paid
angarium transactions switch ID bank '{"ok": true}'      # the bank's callback
angarium transactions show ID
"""

from __future__ import annotations

import json

from angarium import Angarium
from angarium.transactions import Outcome, Step

app = Angarium()


@app.step("charge-card")
async def charge_card(step: Step) -> Outcome:
    """A card company takes `step.key` as its idempotency key: a repeat charges nothing twice."""
    amount = step.data["amount"]
    if amount > step.parameters["amount_max"]:
        return step.aborted("the amount is over the limit", {"amount": amount})
    await step.report_progress({"stage": "charged"})
    return step.succeeded({**step.data, "charge": step.key})


@app.step("await-bank")
async def await_bank(step: Step) -> Outcome:
    """Sleeps until the bank calls back, or asks again after a minute if it does not."""
    answer = step.switches.get("bank")
    if answer is None:
        return step.retry_later(seconds=60, switch="bank")
    if not json.loads(answer)["ok"]:
        return step.failed("the bank refused")
    return step.succeeded({**step.data, "paid": True})
