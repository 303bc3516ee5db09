"""Schema documents as a graph: which positions hold schemas, and where each reference leads (13.7)."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.base.strictjson import JsonValue


class Bundle:
    """A closed bundle. ``reached`` are the digests of the documents that the root reaches, itself among them."""

    def __init__(self, root: str, documents: Mapping[str, JsonValue]) -> None:
        self.reached = frozenset(documents)
