"""What a metric is: the words in which the catalogues declare them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

PREFIX: Final = "sidecar_"

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Kind(Enum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """A label and its closed set: what the documentation says of it, and the values.

    No values stand here where only the process knows them: the build, and the names of frames.
    """

    name: str
    meaning: str
    values: tuple[str, ...] = ()


def one_of(name: str, *values: str) -> Label:
    """A label of exactly these values."""
    return Label(name, ", ".join(f"`{value}`" for value in values), values)


def names_of(kind: type[Enum]) -> tuple[str, ...]:
    """The members of an enum as label values."""
    return tuple(member.name.lower() for member in kind)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its full name (without the `_total` that counters get), what it means, and its bounded labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exposed(self) -> str:
        """The name of the samples as queries write it."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name
