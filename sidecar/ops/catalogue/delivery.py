"""Metrics of the delivery plane: copies, hand-offs, memberships, anycast records."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import Metric

METRICS: Final[tuple[Metric, ...]] = ()
