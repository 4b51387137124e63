"""Bytes that clients may keep in a gateway: shares in order, and who is not read from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from angarium.pickup.budget import ASKED, CROWDED, Budget, Requests


class Later:
    """What a loop does with `call_soon`."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], object]] = deque()

    def __call__(self, run: Callable[[], object]) -> None:
        self.waiting.append(run)

    def run_all(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


def test_shares_are_given_in_the_order_of_asking() -> None:
    later, given_to = Later(), list[str]()
    budget = Budget(10, later)
    budget.request(6, lambda: given_to.append("a"))
    budget.request(6, lambda: given_to.append("b"))
    budget.request(1, lambda: given_to.append("c"))
    assert given_to == ["a"], "the small one does not overtake"
    assert not budget.charge_if_free(1)
    budget.release(6)
    assert given_to == ["a"], "not from within the release"
    later.run_all()
    assert given_to == ["a", "b", "c"]
    assert budget.held == 7


def test_what_is_larger_than_the_whole_is_given_alone() -> None:
    later, given_to = Later(), list[str]()
    budget = Budget(10, later)
    budget.charge(1)
    budget.request(50, lambda: given_to.append("large"))
    assert given_to == []
    budget.release(1)
    later.run_all()
    assert given_to == ["large"]


def test_a_client_waits_for_its_own_share_and_for_the_gateways() -> None:
    later, given_to = Later(), list[str]()
    whole = Budget(10, later)
    one, two = Budget(8, later, whole), Budget(8, later, whole)
    one.request(8, lambda: given_to.append("one"))
    two.request(8, lambda: given_to.append("two"))
    assert given_to == ["one"]
    assert not two.charge_if_free(1), "somebody waits"
    one.request(1, lambda: given_to.append("one again"))
    one.release(8)
    later.run_all()
    assert given_to == ["one", "two", "one again"]
    assert (one.held, two.held, whole.held) == (1, 8, 9)
    two.release(8)
    one.release(1)
    assert (one.held, two.held, whole.held) == (0, 0, 0)
    assert two.charge_if_free(8)
    assert not one.charge_if_free(3), "the whole is full"
    assert one.held == 0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.booleans()), max_size=60),
)
def test_everybody_gets_a_share_and_all_is_returned(asked: list[tuple[int, int, bool]]) -> None:
    later = Later()
    whole = Budget(15, later)
    clients = [Budget(10, later, whole) for _ in range(3)]
    held: list[tuple[int, int]] = []
    granted = 0

    def grant(client: int, size: int) -> Callable[[], None]:
        def run() -> None:
            nonlocal granted
            granted += 1
            held.append((client, size))

        return run

    for client, size, give_back in asked:
        clients[client].request(size, grant(client, size))
        later.run_all()
        assert whole.held <= max(15, max((each for _, each in held), default=0))
        if give_back and held:
            back, returned = held.pop(0)
            clients[back].release(returned)
            later.run_all()
    while held:
        back, returned = held.pop(0)
        clients[back].release(returned)
        later.run_all()
    assert granted == len(asked)
    assert [whole.held, *(each.held for each in clients)] == [0, 0, 0, 0]


class Caller:
    def __init__(self) -> None:
        self.asked = 0
        self.holds = 0

    def hold(self, reason: int) -> None:
        self.holds |= reason

    def let_go(self, reason: int) -> None:
        self.holds &= ~reason


def test_a_client_with_many_calls_is_held_until_half_of_them_are_answered() -> None:
    requests, caller = Requests(100, 1_000), Caller()
    for _ in range(11):
        requests.begin(caller, 10)
    assert caller.holds == ASKED
    for _ in range(5):
        requests.end(caller, 10)
    assert caller.holds == ASKED
    requests.end(caller, 10)
    assert caller.holds == 0


def test_whoever_asks_while_a_gateway_has_too_many_calls_is_held() -> None:
    requests = Requests(100, 150)
    callers: list[Any] = [Caller(), Caller(), Caller()]
    for caller in callers:
        requests.begin(caller, 70)
    assert [each.holds for each in callers] == [0, 0, CROWDED]
    requests.end(callers[0], 70)
    assert callers[2].holds == CROWDED
    requests.end(callers[1], 70)
    assert callers[2].holds == 0
