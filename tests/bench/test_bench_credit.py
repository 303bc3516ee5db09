"""Credit and quota counters beside their oracle and the cost of a bare method call."""

from __future__ import annotations

import pytest

from cext.credit import Credit, Quota
from tests.bench.measure import report
from tests.oracles import credit as oracle

U64 = 2**64 - 1


def test_credit(capsys: pytest.CaptureFixture[str]) -> None:
    real, plain = Credit(U64, U64, U64, U64), oracle.Credit(U64, U64, U64, U64)
    report(
        capsys,
        "credit: debit of one event",
        {
            "cext.credit": lambda: real.spend(1),
            "plain Python": lambda: plain.spend(1),
            "floor: one C method call": lambda: b"".isdigit(),
        },
    )
    assert real.count < U64


def test_quota(capsys: pytest.CaptureFixture[str]) -> None:
    def chain(kind: type[Quota] | type[oracle.Quota]) -> Quota | oracle.Quota:
        server = kind([U64] * 8)
        return kind([U64] * 8, kind([U64] * 8, server))  # type: ignore[arg-type]

    real, plain = chain(Quota), chain(oracle.Quota)
    pairs = [(0, 1), (3, 100)]
    report(
        capsys,
        "quota: charge and release on three levels",
        {
            "cext.credit": lambda: (real.charge(3, 100), real.release(3, 100)),
            "plain Python": lambda: (plain.charge(3, 100), plain.release(3, 100)),
            "floor: two C method calls": lambda: (b"".isdigit(), b"".isdigit()),
        },
    )
    report(
        capsys,
        "quota: charge two resources on three levels, then release all",
        {
            "cext.credit": lambda: (real.charge_many(pairs), real.release_all()),
            "plain Python": lambda: (plain.charge_many(pairs), plain.release_all()),
            "floor: two C method calls": lambda: (b"".isdigit(), b"".isdigit()),
        },
    )
    assert real.used(3) == plain.used(3) == 0
