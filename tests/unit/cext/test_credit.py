"""Credit balances and quotas at their limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cext.credit import Credit, CreditOverflow, Quota

MAX_COUNT, MAX_BYTES = 4096, 8 * 1024 * 1024
U64 = 2**64 - 1


def balance(credit: Credit) -> tuple[int, int]:
    return credit.count, credit.nbytes


@pytest.mark.req("P10-06")
def test_an_event_costs_one_count_and_its_outer_length() -> None:
    credit = Credit(MAX_COUNT, MAX_BYTES, 2, 169)
    assert not Credit(MAX_COUNT, MAX_BYTES, 2, 168).spend(169)
    assert credit.spend(169)
    assert balance(credit) == (1, 0)
    assert not credit.spend(1)
    assert balance(credit) == (1, 0)


@pytest.mark.req("P10-07")
@pytest.mark.parametrize(("count", "nbytes"), [(0, MAX_BYTES), (MAX_COUNT, 0), (0, 0), (1, 99)])
def test_both_balances_must_suffice(count: int, nbytes: int) -> None:
    credit = Credit(MAX_COUNT, MAX_BYTES, count, nbytes)
    assert credit.spend(100) is False
    assert balance(credit) == (count, nbytes)


@pytest.mark.req("P10-06", "P10-07")
@pytest.mark.parametrize(("count", "nbytes", "paid"), [(3, 300, True), (4, 300, False), (3, 301, False), (0, 0, True)])
def test_several_events_are_paid_together_or_not_at_all(count: int, nbytes: int, paid: bool) -> None:
    credit = Credit(MAX_COUNT, MAX_BYTES, 3, 300)
    assert credit.spend(nbytes, count) is paid
    assert balance(credit) == ((3 - count, 300 - nbytes) if paid else (3, 300))


@pytest.mark.req("P10-09", "P10-16")
@pytest.mark.parametrize(
    ("count", "nbytes"),
    [(MAX_COUNT, 0), (0, MAX_BYTES), (MAX_COUNT, MAX_BYTES), (U64, 0), (0, U64), (U64, U64)],
)
def test_credit_above_a_maximum_is_refused_and_changes_nothing(count: int, nbytes: int) -> None:
    credit = Credit(MAX_COUNT, MAX_BYTES, 1, 1)
    with pytest.raises(CreditOverflow):
        credit.add(count, nbytes)
    assert balance(credit) == (1, 1)


@pytest.mark.req("P10-16")
def test_credit_reaches_each_maximum_exactly() -> None:
    credit = Credit(MAX_COUNT, MAX_BYTES)
    credit.add(MAX_COUNT, MAX_BYTES)
    assert balance(credit) == (credit.max_count, credit.max_bytes) == (MAX_COUNT, MAX_BYTES)
    with pytest.raises(CreditOverflow):
        credit.add(1, 0)
    with pytest.raises(CreditOverflow):
        credit.add(0, 1)
    credit.add(0, 0)
    credit.clear()
    assert balance(credit) == (0, 0)


@pytest.mark.req("P10-09")
def test_addition_cannot_wrap() -> None:
    credit = Credit(U64, U64, U64, U64)
    with pytest.raises(CreditOverflow):
        credit.add(1, 0)
    with pytest.raises(CreditOverflow):
        credit.add(0, U64)
    assert balance(credit) == (U64, U64)


@pytest.mark.req("P10-16")
def test_initial_credit_above_a_maximum_is_refused() -> None:
    with pytest.raises(CreditOverflow):
        Credit(1, 10, 2, 10)
    with pytest.raises(CreditOverflow):
        Credit(1, 10, 1, 11)


def test_values_outside_u64_are_refused() -> None:
    credit = Credit(MAX_COUNT, MAX_BYTES, 1, 1)
    for value in (-1, U64 + 1):
        with pytest.raises(OverflowError):
            credit.add(value, 0)
        with pytest.raises(OverflowError):
            credit.spend(value)
        with pytest.raises(OverflowError):
            credit.spend(0, value)
    assert balance(credit) == (1, 1)
    assert repr(credit) == "Credit(count=1/4096, nbytes=1/8388608)"


CONNECTION, PRINCIPAL, SERVER = [2, 100], [3, 150], [4, 200]


def chain() -> tuple[Quota, Quota, Quota]:
    server = Quota(SERVER)
    principal = Quota(PRINCIPAL, server)
    return Quota(CONNECTION, principal), principal, server


def usage(*levels: Quota) -> list[list[int]]:
    return [[level.used(0), level.used(1)] for level in levels]


@pytest.mark.req("P3-48")
def test_a_charge_is_made_on_every_level_or_on_none() -> None:
    connection, principal, server = chain()
    assert connection.charge(0)
    assert connection.charge(1, 100)
    assert usage(connection, principal, server) == [[1, 100]] * 3
    assert not connection.charge(1, 1)
    assert usage(connection, principal, server) == [[1, 100]] * 3


@pytest.mark.req("P3-48")
@pytest.mark.parametrize("full", [0, 1, 2])
def test_the_level_that_is_full_refuses(full: int) -> None:
    limits = [[5], [5], [5]]
    limits[full] = [1]
    server = Quota(limits[2])
    principal = Quota(limits[1], server)
    connection = Quota(limits[0], principal)
    assert connection.charge(0)
    assert not connection.charge(0)
    assert [level.used(0) for level in (connection, principal, server)] == [1, 1, 1]


@pytest.mark.req("P3-48")
def test_many_resources_are_charged_together_or_not_at_all() -> None:
    connection, principal, server = chain()
    assert not connection.charge_many([(0, 1), (1, 60), (1, 60)])
    assert usage(connection, principal, server) == [[0, 0]] * 3
    assert connection.charge_many([(0, 1), (1, 60), (1, 40)])
    assert usage(connection, principal, server) == [[1, 100]] * 3
    # Fits here, but no longer at the server.
    assert Quota([9, 9], server).charge_many([(0, 3), (1, 1)])
    assert not connection.charge_many([(0, 1)])


@pytest.mark.req("P3-48")
@pytest.mark.parametrize("bad", [(2, 1), (0, -1), (0, U64 + 1), (0, "1"), 7])
def test_a_malformed_charge_leaves_nothing_behind(bad: object) -> None:
    connection, principal, server = chain()
    with pytest.raises((IndexError, OverflowError, TypeError)):
        connection.charge_many([(0, 1), bad])  # type: ignore[list-item]
    assert usage(connection, principal, server) == [[0, 0]] * 3
    assert connection.charge_many([(0, 2)])  # nothing of the failed call was kept


@pytest.mark.req("P3-48")
def test_sums_cannot_wrap() -> None:
    quota = Quota([U64])
    assert not quota.charge_many([(0, U64), (0, 1)])
    assert quota.charge(0, U64)
    assert not quota.charge(0, 1)
    assert quota.used(0) == quota.limit(0) == U64


@pytest.mark.req("P3-49")
def test_exhaustion_by_one_takes_nothing_from_another() -> None:
    server = Quota([4])
    greedy, modest = Quota([4], server), Quota([4], server)
    assert modest.charge(0, 1)
    assert greedy.charge(0, 3)
    assert not greedy.charge(0)
    assert (greedy.used(0), modest.used(0), server.used(0)) == (3, 1, 4)
    greedy.release_all()
    assert (greedy.used(0), modest.used(0), server.used(0)) == (0, 1, 1)


@pytest.mark.req("P3-48")
def test_release_gives_back_only_what_this_level_charged() -> None:
    connection, principal, server = chain()
    connection.charge(0, 2)
    principal.charge(0, 1)
    with pytest.raises(ValueError, match="released more"):
        principal.release(0, 2)
    with pytest.raises(ValueError, match="released more"):
        connection.release(0, 3)
    assert [level.used(0) for level in (connection, principal, server)] == [2, 3, 3]
    principal.release_all()
    assert [level.used(0) for level in (connection, principal, server)] == [2, 2, 2]
    connection.release(0)
    connection.release_all()
    connection.release_all()
    assert [level.used(0) for level in (connection, principal, server)] == [0, 0, 0]


def test_a_generator_that_charges_meanwhile_is_harmless() -> None:
    quota = Quota([10])

    def amounts() -> Iterator[tuple[int, int]]:
        yield 0, 1
        quota.charge_many([(0, 2)])
        yield 0, 3

    assert quota.charge_many(amounts())
    assert quota.used(0) == 6


def test_construction_is_checked() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Quota([])
    with pytest.raises(ValueError, match="same resources"):
        Quota([1], Quota([1, 2]))
    with pytest.raises(OverflowError):
        Quota([1, -1])
    quota = Quota([1])
    for call in (quota.used, quota.limit, quota.charge, quota.release):
        for index in (-1, 1):
            with pytest.raises(IndexError):
                call(index)
