"""Metrics of the messaging client: what a member of a space sends, receives and refuses."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import Metric

METRICS: Final[tuple[Metric, ...]] = ()
