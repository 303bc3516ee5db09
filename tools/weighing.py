"""pytest plugin of the coverage build: leaves out tests that weigh memory, since they would weigh the tracer."""

from __future__ import annotations

import inspect

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if isinstance(item, pytest.Function) and weighs_memory(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def weighs_memory(item: pytest.Function) -> bool:
    source = inspect.getsource(inspect.unwrap(item.function))
    return "tracemalloc" in source or "tracing(" in source or "traced" in item.fixturenames
