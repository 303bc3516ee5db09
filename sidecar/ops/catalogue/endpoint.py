"""Metrics of the endpoint rails: calls made and served."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import Metric

METRICS: Final[tuple[Metric, ...]] = ()
