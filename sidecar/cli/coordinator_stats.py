"""What the diagnostic commands share: asking the admin socket, quotas as rows, rates of two looks, short numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from sidecar.cli.connection_options import read_ready
from sidecar.cli.coordinator_document import COUNTERS, fault_of
from sidecar.cli.coordinator_target import Exit
from sidecar.ops.admin import NotBelieved, fetch

F = TypeVar("F", bound=Callable[..., Any])

EXIT_HELP: Final = """\b
Exit codes:
  0  done, or stopped with Ctrl-C
  1  quota --check found a quota above its percentage
  2  wrong usage
  3  the admin socket is not there or does not answer
  4  the socket, its directory or its server is not this user's alone, or it answers in another way than this release
"""

NEAR: Final = 80.0
"""Percent of a cap from which a quota is shown as near it."""


def admin_options(function: F) -> F:
    """``--dev`` and ``--admin-socket``."""
    for option in (
        click.option(
            "--admin-socket",
            "admin_path",
            type=click.Path(path_type=Path),
            help="Admin socket of the coordinator, `admin.sock` beside its socket.",
        ),
        click.option(
            "--dev",
            type=click.Path(path_type=Path, file_okay=False),
            help="Directory of a running `sidecar dev`: gives the admin socket.",
        ),
    ):
        function = option(function)
    return function


def admin_socket(dev: Path | None, given: Path | None) -> Path:
    """The socket that the options name."""
    if given is not None:
        return given
    if dev is None:
        raise click.UsageError("give --admin-socket, or --dev with the directory of a running `sidecar dev`")
    found = read_ready(dev)["coordinator"].get("admin_socket")
    if not isinstance(found, str):
        raise click.UsageError("this `sidecar dev` runs without an admin socket (admin.enabled = false)")
    return Path(found)


class Level(NamedTuple):
    """One limited resource of the server, of a principal or of a connection."""

    level: str
    who: str
    resource: str
    used: int
    cap: int

    @property
    def percent(self) -> float:
        """How full. Of a cap of 0 nothing can be used, which is full."""
        return 100.0 * self.used / self.cap if self.cap else 100.0

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {**self._asdict(), "percent": round(self.percent, 2)}


def levels_of(document: dict[str, Any], *, connections: bool) -> list[Level]:
    """Every quota, the fullest first."""
    rows = list(_levels("server", "-", document["quotas"]))
    for principal in document["principals"]:
        rows += _levels("principal", principal["key_id"], principal["quotas"])
    if connections:
        for conn in document["connections"]:
            rows += _levels("connection", f"pid {conn.get('pid', '?')} {conn['key_id']}", conn["quotas"])
    return sorted(rows, key=lambda row: (-row.percent, _ORDER[row.level], row.who, row.resource))


_ORDER: Final = {"server": 0, "principal": 1, "connection": 2}


def _levels(level: str, who: str, quotas: dict[str, Any]) -> Iterator[Level]:
    for resource, quota in quotas.items():
        if quota["cap"] is not None:
            yield Level(level, who, resource, quota["used"], quota["cap"])


@dataclass(frozen=True, slots=True)
class Look:
    """One answer, and when it came on this side's monotonic clock."""

    document: dict[str, Any]
    at: float


def look(path: Path) -> Look:
    """Ask now. Raises CannotAsk, NotBelieved."""
    document = fetch(path)
    at = time.monotonic()
    fault = fault_of(document)
    if fault is not None:
        raise NotBelieved(f"{path}: the answer has no usable {fault}; use a client of the server's release")
    return Look(document, at)


def rates(before: Look | None, after: Look) -> dict[str, Any] | None:
    """Counters per second between two looks at one process; None when there are not two."""
    if before is None or before.document["pid"] != after.document["pid"] or after.at <= before.at:
        return None
    seconds = after.at - before.at
    old, new = before.document["counters"], after.document["counters"]
    shown: dict[str, Any] = {}
    for name in COUNTERS:
        value = new[name]
        if isinstance(value, dict):
            shown[name] = {label: (count - old[name].get(label, 0)) / seconds for label, count in value.items()}
        else:
            shown[name] = (value - old[name]) / seconds
    return shown


def number(value: float) -> str:
    """A count or a rate, with thousands separated; a small rate keeps one digit behind the point."""
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def size(nbytes: float) -> str:
    """Bytes, in binary units from 10 KiB on."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 10_240:
            return f"{nbytes:,.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.0f} GiB"


def seconds(value: float) -> str:
    """A duration in its largest two units."""
    whole = int(value)
    if whole < 100:
        return f"{whole} s"
    if whole < 6_000:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} m"


def document_line(document: dict[str, Any]) -> str:
    """One JSON object in one line."""
    return json.dumps(document, separators=(",", ":"))


__all__ = [
    "EXIT_HELP",
    "NEAR",
    "Exit",
    "Level",
    "Look",
    "admin_options",
    "admin_socket",
    "document_line",
    "levels_of",
    "look",
    "number",
    "rates",
    "seconds",
    "size",
]
