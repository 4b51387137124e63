"""A short search through every parser, from its seeds; `make fuzz` searches for longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_read(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_what_earlier_searches_reached_is_read(name: str) -> None:
    found = corpus.read(name)
    assert found
    for each in found:
        TARGETS[name].run(each)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_seeds_and_noise_raise_only_what_is_documented(name: str) -> None:
    target = TARGETS[name]

    @given(
        st.sampled_from(target.seeds),
        st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), st.binary(max_size=6))),
    )
    def search(seed: bytes, damages: list[tuple[int, int, bytes]]) -> None:
        data = seed
        for place, gone, put in damages:
            data = data[:place] + put + data[place + gone :]
        target.run(data)

    search()
