"""A fan-out: an order's items are packed at the same time, each by a child pipeline of its own.

angarium up app:app                            # in this folder, in one terminal
angarium pipeline load order.toml              # in another, and then
angarium transactions start order --data '{"items": [{"name": "tea", "grams": 250}]}' --wait-s 10
"""

from __future__ import annotations

from angarium import Angarium
from angarium.transactions import Outcome, Step

app = Angarium()


@app.step("weigh")
async def weigh(step: Step) -> Outcome:
    return step.succeeded({**step.data, "kilograms": step.data["grams"] / 1000})


@app.step("wrap")
async def wrap(step: Step) -> Outcome:
    return step.succeeded({"parcel": step.data["name"], "kilograms": step.data["kilograms"]})


@app.step("dispatch")
async def dispatch(step: Step) -> Outcome:
    """Gets the parcels of all children, in the order of the items."""
    parcels = step.data["items"]
    total = sum(parcel["kilograms"] for parcel in parcels)
    return step.succeeded({"parcels": [p["parcel"] for p in parcels], "kilograms": total})
