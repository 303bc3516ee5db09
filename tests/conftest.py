"""Shared fixtures: requirement rows become JUnit properties."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

# A machine under load is slow and not wrong.
settings.register_profile("sidecar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sidecar")


@pytest.fixture(autouse=True)
def _record_requirements(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    for mark in request.node.iter_markers("req"):
        for row in mark.args:
            record_property("req", row)
