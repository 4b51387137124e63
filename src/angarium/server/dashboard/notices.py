"""Derives notices for operators from the modules' metrics. Pure: metrics in, notices out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Literal

import msgspec

from angarium.conversations.wait_reasons import SenderWait, process_with_sender
from angarium.transactions.store.queries import AwaitedStep

# Nodes of two applications in one group constantly pass work to each other. Work that waits longer
# than this waits for a node that is missing or overloaded.
STEP_AWAITED_MS = 5_000

Facts = Mapping[str, Mapping[str, int]]


class Notice(msgspec.Struct, frozen=True):
    """`hint` is the next action for the operator."""

    module: str
    level: Literal["warning", "trouble"]
    text: str
    hint: str


def notices(
    facts: Facts,
    roles: Set[str],
    dropped_events: int,
    awaited_steps: Sequence[AwaitedStep] = (),
    needs: Sequence[SenderWait] = (),
) -> list[Notice]:
    """Trouble first, then warnings."""
    found = [
        *_dispatch(facts["dispatch"]),
        *_routing(facts["routing"]),
        *_transactions(facts["transactions"], roles),
        *_awaited_steps(awaited_steps),
        *_waiting_replies(needs),
        *_rest(facts, roles, dropped_events),
    ]
    return sorted(found, key=lambda notice: notice.level != "trouble")


def _dispatch(module: Mapping[str, int]) -> Iterator[Notice]:
    if module["waiting"] and module["without_leader"]:
        text = (
            f"{_many(module['without_leader'], 'partition')} without a leader while messages wait"
        )
        yield Notice("dispatch", "trouble", text, "start one: angarium serve dispatcher")
    elif module["waiting"] and not module["consumers"]:
        text = f"{_many(module['waiting'], 'message')} and no worker"
        yield Notice("dispatch", "trouble", text, "start one: angarium serve worker")
    if module["dead"]:
        text = _many(module["dead"], "dead letter")
        yield Notice("dispatch", "warning", text, "look at the reasons, then retry or discard")


def _routing(module: Mapping[str, int]) -> Iterator[Notice]:
    if module["unowned"]:
        text = f"{_many(module['unowned'], 'recipient key')} with mail and no owner"
        yield Notice("routing", "trouble", text, "start an instance: angarium serve inbox")
    if module["silent"]:
        text = f"{_many(module['silent'], 'instance')} silent"
        yield Notice("routing", "warning", text, "its keys move to other instances automatically")
    if module["dead_outbound"]:
        text = f"{_many(module['dead_outbound'], 'delivery')} given up"
        yield Notice("routing", "warning", text, "look at the reasons, then retry")
    if module["dead_inbound"]:
        text = f"{_many(module['dead_inbound'], 'inbound message')} that no instance could handle"
        yield Notice("routing", "warning", text, "the reason is in the log of the role inbox")


def _transactions(module: Mapping[str, int], roles: Set[str]) -> Iterator[Notice]:
    if module["queued"] and "node" not in roles:
        text = f"{_many(module['queued'], 'transaction')} queued and no node"
        yield Notice("transactions", "trouble", text, "start one: angarium serve node")
    if module["webhooks"] and "webhooks" not in roles:
        text = f"{_many(module['webhooks'], 'webhook')} due and no process sends them"
        yield Notice("transactions", "trouble", text, "start one: angarium serve webhooks")
    if module["silent_nodes"]:
        text = f"{_many(module['silent_nodes'], 'node')} silent"
        yield Notice("transactions", "warning", text, "other nodes take over its transactions")


def _awaited_steps(steps: Sequence[AwaitedStep]) -> Iterator[Notice]:
    for step in steps:
        if step.waiting_ms >= STEP_AWAITED_MS:
            many = _many(step.transactions, "transaction")
            text = f"{many} waiting for a node with step '{step.step_type}' ({step.node_group})"
            hint = "start a node whose application has this step, or cancel them"
            yield Notice("transactions", "trouble", text, hint)


def _waiting_replies(needs: Sequence[SenderWait]) -> Iterator[Notice]:
    for need in needs:
        text = f"{_many(need.replies, 'reply')} waiting for {process_with_sender(need.senders)}"
        hint = "start a process whose application has this sender, or cancel them"
        yield Notice("conversations", "trouble", text, hint)


def _rest(facts: Facts, roles: Set[str], dropped_events: int) -> Iterator[Notice]:
    replies = facts["conversations"]["replies"]
    if replies and "conversations" not in roles:
        text = f"{_many(replies, 'reply')} in flight and no process sends them"
        yield Notice("conversations", "trouble", text, "start one: angarium serve conversations")
    if dropped_events:
        text = f"{_many(dropped_events, 'event')} dropped from the journal before they were read"
        yield Notice("lake", "warning", text, "run the lake, or raise ANGARIUM_JOURNAL__BYTES_MAX")


def _many(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith(("ry", "ly")) else f"{noun}s"
    return f"{count:,} {plural}"
