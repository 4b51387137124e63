"""Byte budgets of clients and gateways, and when reading from a client pauses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from angarium.pickup.budget import ALL_CALLS, OWN_CALLS, ByteBudget, UnansweredCalls


class CallSoon:
    """Collects the callbacks of `call_soon`."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], object]] = deque()

    def __call__(self, run: Callable[[], object]) -> None:
        self.waiting.append(run)

    def run_all(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


def test_requests_are_granted_in_order() -> None:
    call_soon, given_to = CallSoon(), list[str]()
    budget = ByteBudget(10, call_soon)
    budget.request(6, lambda: given_to.append("a"))
    budget.request(6, lambda: given_to.append("b"))
    budget.request(1, lambda: given_to.append("c"))
    assert given_to == ["a"], "a smaller request does not overtake"
    assert not budget.charge_if_free(1)
    budget.release(6)
    assert given_to == ["a"], "`release` does not call it directly"
    call_soon.run_all()
    assert given_to == ["a", "b", "c"]
    assert budget.used == 7


def test_a_request_larger_than_the_budget_is_granted_alone() -> None:
    call_soon, given_to = CallSoon(), list[str]()
    budget = ByteBudget(10, call_soon)
    budget.charge(1)
    budget.request(50, lambda: given_to.append("large"))
    assert given_to == []
    budget.release(1)
    call_soon.run_all()
    assert given_to == ["large"]


def test_a_client_waits_for_its_own_budget_and_for_the_gateways_budget() -> None:
    call_soon, given_to = CallSoon(), list[str]()
    gateway = ByteBudget(10, call_soon)
    one, two = ByteBudget(8, call_soon, gateway), ByteBudget(8, call_soon, gateway)
    one.request(8, lambda: given_to.append("one"))
    two.request(8, lambda: given_to.append("two"))
    assert given_to == ["one"]
    assert not two.charge_if_free(1), "a request waits"
    one.request(1, lambda: given_to.append("one again"))
    one.release(8)
    call_soon.run_all()
    assert given_to == ["one", "two", "one again"]
    assert (one.used, two.used, gateway.used) == (1, 8, 9)
    two.release(8)
    one.release(1)
    assert (one.used, two.used, gateway.used) == (0, 0, 0)
    assert two.charge_if_free(8)
    assert not one.charge_if_free(3), "the gateway is full"
    assert one.used == 0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.booleans()), max_size=60),
)
def test_every_request_is_granted_and_every_byte_released(
    asked: list[tuple[int, int, bool]],
) -> None:
    call_soon = CallSoon()
    gateway = ByteBudget(15, call_soon)
    clients = [ByteBudget(10, call_soon, gateway) for _ in range(3)]
    charged: list[tuple[int, int]] = []
    granted = 0

    def grant(client: int, size: int) -> Callable[[], None]:
        def run() -> None:
            nonlocal granted
            granted += 1
            charged.append((client, size))

        return run

    for client, size, give_back in asked:
        clients[client].request(size, grant(client, size))
        call_soon.run_all()
        assert gateway.used <= max(15, max((each for _, each in charged), default=0))
        if give_back and charged:
            back, returned = charged.pop(0)
            clients[back].release(returned)
            call_soon.run_all()
    while charged:
        back, returned = charged.pop(0)
        clients[back].release(returned)
        call_soon.run_all()
    assert granted == len(asked)
    assert [gateway.used, *(each.used for each in clients)] == [0, 0, 0, 0]


class FakeClient:
    def __init__(self) -> None:
        self.unanswered_bytes = 0
        self.pause_reasons = 0

    def pause_reading(self, reason: int) -> None:
        self.pause_reasons |= reason

    def resume_reading(self, reason: int) -> None:
        self.pause_reasons &= ~reason


def test_reading_pauses_at_the_clients_limit_and_resumes_at_half_of_it() -> None:
    calls, client = UnansweredCalls(100, 1_000), FakeClient()
    for _ in range(11):
        calls.begin(client, 10)
    assert client.pause_reasons == OWN_CALLS
    for _ in range(5):
        calls.end(client, 10)
    assert client.pause_reasons == OWN_CALLS
    calls.end(client, 10)
    assert client.pause_reasons == 0


def test_a_call_beyond_the_gateways_limit_pauses_its_client() -> None:
    calls = UnansweredCalls(100, 150)
    clients: list[Any] = [FakeClient(), FakeClient(), FakeClient()]
    for client in clients:
        calls.begin(client, 70)
    assert [each.pause_reasons for each in clients] == [0, 0, ALL_CALLS]
    calls.end(clients[0], 70)
    assert clients[2].pause_reasons == ALL_CALLS
    calls.end(clients[1], 70)
    assert clients[2].pause_reasons == 0
