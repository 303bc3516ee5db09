"""Rows and pages of the question ``endpoints``, out of what was read (C13.20-04..06, -10, -12, -14). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.clusters import EPHEMERAL, JOURNAL
from sidecar.rails.names.tokens import MODES
from sidecar.rails.planes.registry.artifacts import Declares
from sidecar.rails.planes.registry.coverage import Declared, Projection

OVERHEAD: Final = 2_048
"""Bytes that the envelope of an answer may take beside its rows."""


class RowTooLarge(Exception):  # noqa: N818 - a state
    """A single row that fits into no message."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One registered instance as a row shows it."""

    state: str | None
    declares: Declares


def declarations(instances: Mapping[str, Declares]) -> list[Declared]:
    """The declarations of an endpoint's commands: one for each name, class and set of modes, with the instances that
    make it; ordered by these. What is not verified declares nothing (C13.20-05, -06)."""
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for instance, declares in instances.items():
        for command in declares.commands.values():
            modes = tuple(mode for mode in MODES if mode in command.modes)
            found.setdefault((command.name, command.contract_class, modes), []).append(instance)
    return [
        Declared(name, declared == JOURNAL, modes, tuple(sorted(makers)))
        for (name, declared, modes), makers in sorted(found.items())
    ]


def row(
    endpoint: str, instances: Mapping[str, Shown], declared: Sequence[Declared], projected: Iterable[Projection] | None
) -> dict[str, JsonValue] | None:
    """The row of one endpoint with what was projected of it, in pieces; None when the ceiling covers nothing. Without a
    ceiling (``projected`` None: there is no permission system) every declared command is listed, with empty forms."""
    unprojected: list[JsonValue] = []
    if projected is None:
        listed: list[tuple[Declared, list[JsonValue]]] = [(one, []) for one in declared]
    else:
        listed = []
        for piece in projected:
            listed += [(one, [form.value() for form in forms]) for one, forms in piece.commands]
            unprojected += piece.unprojected
        if not listed and not unprojected:
            return None
    commands: list[JsonValue] = []
    for one, forms in listed:
        entry: dict[str, JsonValue] = {"name": one.name, "class": JOURNAL if one.journal else EPHEMERAL, "forms": forms}
        if len(one.instances) < len(instances):
            entry["instances"] = list(one.instances)
        commands.append(entry)
    shown: list[JsonValue] = [
        {"instanceId": instance, "state": one.state, "artifacts": str(one.declares.state)}
        for instance, one in sorted(instances.items())
    ]
    found: dict[str, JsonValue] = {"endpoint": endpoint, "instances": shown, "commands": commands}
    if unprojected:
        found["unprojected"] = unprojected
    return found


@dataclass(slots=True)
class Pages:
    """Rows of one answer: at most so many, and at most so many bytes. The last key taken is where the next begins."""

    limit: int
    budget: int
    rows: list[JsonValue] = field(default_factory=list)
    last: str = ""

    def take(self, key: str, value: JsonValue) -> bool:
        """Put a row behind the others; False when the page is full, and there is a next one. Raises RowTooLarge for
        one that fits into no page."""
        size = len(orjson.dumps(value)) + 1
        if self.rows and (len(self.rows) >= self.limit or size > self.budget):
            return False
        if size > self.budget:
            raise RowTooLarge
        self.budget -= size
        self.rows.append(value)
        self.last = key
        return True
