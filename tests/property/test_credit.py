"""cext.credit against its plain-Python oracle under arbitrary sequences of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cext.credit import Credit, CreditOverflow, Quota
from tests.oracles import credit as oracle

U64 = 2**64 - 1
amounts = st.integers(0, 5) | st.integers(U64 - 3, U64) | st.integers(0, U64)
credit_calls = st.lists(
    st.tuples(st.just("add"), amounts, amounts)
    | st.tuples(st.just("spend"), amounts, st.just(1) | amounts)
    | st.tuples(st.just("clear"), st.just(0), st.just(0)),
    max_size=30,
)


@pytest.mark.req("P10-06", "P10-07", "P10-09", "P10-16")
@given(maxima=st.tuples(amounts, amounts), calls=credit_calls)
@settings(max_examples=200, deadline=None)
def test_credit_equals_the_oracle(maxima: tuple[int, int], calls: list[tuple[str, int, int]]) -> None:
    real, plain = Credit(*maxima), oracle.Credit(*maxima)
    for name, first, second in calls:
        if name == "spend":
            assert real.spend(first, second) == plain.spend(first, second)
        elif name == "clear":
            real.clear()
            plain.clear()
        else:
            try:
                plain.add(first, second)
            except oracle.CreditOverflow:
                with pytest.raises(CreditOverflow):
                    real.add(first, second)
            else:
                real.add(first, second)
        assert (real.count, real.nbytes) == (plain.count, plain.nbytes)
        assert real.count <= maxima[0]
        assert real.nbytes <= maxima[1]


RESOURCES = 3
limits = st.lists(st.integers(0, 12) | st.just(U64), min_size=RESOURCES, max_size=RESOURCES)
charges = st.lists(st.tuples(st.integers(0, RESOURCES - 1), st.integers(0, 6) | st.just(U64)), max_size=4)
# A server, two principals, two connections of each.
PARENTS = (None, 0, 0, 1, 1, 2, 2)
quota_calls = st.lists(
    st.tuples(st.integers(0, len(PARENTS) - 1), st.sampled_from(["charge", "release", "release_all"]), charges),
    max_size=40,
)


@pytest.mark.req("P3-48", "P3-49")
@given(tree=st.lists(limits, min_size=len(PARENTS), max_size=len(PARENTS)), calls=quota_calls)
@settings(max_examples=200, deadline=None)
def test_quota_trees_equal_the_oracle(
    tree: list[list[int]], calls: list[tuple[int, str, list[tuple[int, int]]]]
) -> None:
    real: list[Quota] = []
    plain: list[oracle.Quota] = []
    for level_limits, parent in zip(tree, PARENTS, strict=True):
        real.append(Quota(level_limits, None if parent is None else real[parent]))
        plain.append(oracle.Quota(level_limits, None if parent is None else plain[parent]))
    for level, name, pairs in calls:
        if name == "charge":
            if len(pairs) == 1:
                assert real[level].charge(*pairs[0]) == plain[level].charge(*pairs[0])
            else:
                assert real[level].charge_many(pairs) == plain[level].charge_many(pairs)
        elif name == "release_all":
            real[level].release_all()
            plain[level].release_all()
        else:
            for resource, amount in pairs:
                try:
                    plain[level].release(resource, amount)
                except ValueError:
                    with pytest.raises(ValueError, match="released more"):
                        real[level].release(resource, amount)
                else:
                    real[level].release(resource, amount)
        for counted, expected in zip(real, plain, strict=True):
            for resource in range(RESOURCES):
                assert counted.used(resource) == expected.used(resource) <= counted.limit(resource)
