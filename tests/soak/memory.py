"""What the server holds while the soak runs, and whether it grows."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.soak.truth import Failed

PER_LIFE = 512.0
"""Bytes of resident memory by which the server may grow with each connection that is over."""
NOISE = 1.5 * 1_048_576
"""Bytes by which resident memory goes up and down by itself: allocator, interpreter, SQLite's page cache."""
PER_OPERATION = 4_096.0
"""Bytes of a stored operation with its objects: kept by contract, and no leak."""


class Sample(NamedTuple):
    """One look."""

    seconds: float
    lives: int
    operations: int
    rss: int


def growth(samples: list[Sample]) -> float:
    """Bytes for each connection that ended, by least squares, without what the operations may have cost."""
    base = samples[0]
    points = [
        (sample.lives - base.lives, sample.rss - base.rss - PER_OPERATION * (sample.operations - base.operations))
        for sample in samples
    ]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def bound(samples: list[Sample]) -> float:
    """The growth that is no leak for certain."""
    return max(PER_LIFE, NOISE / max(1, samples[-1].lives - samples[0].lives))


def check_growth(samples: list[Sample]) -> dict[str, float]:
    """Compare growth and bound over the second half of a run. Raises Failed."""
    late = samples[len(samples) // 2 :]
    found = {"bytes_per_connection": round(growth(late), 1), "bound": round(bound(late), 1)}
    if found["bytes_per_connection"] > found["bound"]:
        raise Failed(f"the server grows with each connection: {found}, {late[0]} to {late[-1]}")
    return found


def check_caps(document: dict[str, Any]) -> None:
    """No counter of any level is above its cap (P3-33..47)."""
    levels = [("server", document["quotas"])]
    for kind in ("principals", "connections"):
        levels += [(f"{kind} {one['key_id']}", one["quotas"]) for one in document[kind]]
    for name, quotas in levels:
        for resource, row in quotas.items():
            if row["cap"] is not None and row["used"] > row["cap"]:
                raise Failed(f"{name}: {row['used']} {resource}, the cap is {row['cap']}")


def held(document: dict[str, Any]) -> dict[str, Any]:
    """Whatever is not zero once everybody has left."""
    found = {resource: row["used"] for resource, row in document["quotas"].items() if row["used"]}
    found |= {name: document[name] for name in ("principals", "connections") if document[name]}
    found |= {f"{name} queue": count for name, count in document["queues"].items() if count}
    return found | {f"{state} sockets": count for state, count in document["sockets"].items() if count}
