"""A coordinator's house for every test of the authority: its directories, its key and a witness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.authority.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    with house.stack:
        yield house
    house.witness.service.close()
