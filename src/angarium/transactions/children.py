"""The data of child transactions, and the outcome of a step from the results of its children."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from angarium.transactions.model import ChildResult, TransactionStatus
from angarium.transactions.pipeline import StepDefinition
from angarium.transactions.running import StepError
from angarium.transactions.step import Outcome, Verdict

_decode = msgspec.json.decode
_encode = msgspec.json.Encoder().encode
_result_decoder = msgspec.json.Decoder(ChildResult)


def children_data(data: bytes, definition: StepDefinition) -> list[bytes]:
    """The data of each child."""
    if definition.for_each is None:
        return [data]
    whole = _decode(data)
    items = whole.get(definition.for_each) if isinstance(whole, dict) else None
    if not isinstance(items, list):
        raise StepError(f"its data has no list {definition.for_each!r}")
    return [_encode(item) for item in items]


def children_outcome(encoded: Sequence[bytes], definition: StepDefinition, data: bytes) -> Outcome:
    """All children have ended: their outputs replace their data."""
    results = [_result_decoder.decode(each) for each in encoded if each]
    wrong = [each for each in results if each.status != TransactionStatus.SUCCESS]
    if wrong:
        note = f"{len(wrong)} of {len(results)} children did not succeed"
        return Outcome(Verdict.FAILED, [msgspec.to_builtins(each) for each in results], note)
    outputs = [each.output for each in results]
    if definition.for_each is None:
        return Outcome(Verdict.SUCCEEDED, outputs[0])
    return Outcome(Verdict.SUCCEEDED, {**_decode(data), definition.for_each: outputs})
