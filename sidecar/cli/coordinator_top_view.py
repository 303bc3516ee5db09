"""What ``sidecar coordinator top`` shows, as lines of text: no terminal, no clock, no socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from sidecar.cli.coordinator_show import table
from sidecar.cli.coordinator_stats import NEAR, levels_of, number, seconds, size
from sidecar.cli.main import one_line

Document = dict[str, Any]

_FULLEST: Final = 5
"""Quotas that are listed although they are not near their cap."""
_ID: Final = 12
"""Digits of an id that are shown; --json has all of them."""


class Mark(Enum):
    """How a line is set off where colours are possible; the value is its SGR sequence."""

    PLAIN = ""
    HEAD = "1"
    WARN = "33"
    ALERT = "1;31"


class Line(NamedTuple):
    """One line of the view."""

    text: str
    mark: Mark = Mark.PLAIN


def view(document: Document, per_second: Document | None) -> list[Line]:
    """The whole view of one look. ``per_second`` are the rates since the look before it, if there was one."""
    return [
        *_totals(document, per_second),
        *_refusals(document["counters"], per_second),
        *_quotas(document),
        *_principals(document),
        *_subscriptions(document),
        *_leases(document),
        *_connections(document),
    ]


def silent(reason: str, last: Document | None, age: float) -> Line:
    """What stands above a view that is not fresh any more."""
    tail = "" if last is None else f"; what follows is {seconds(age)} old"
    return Line(one_line(f"NO ANSWER, trying again: {reason}{tail}"), Mark.ALERT)


def _totals(document: Document, per_second: Document | None) -> Iterator[Line]:
    authority, events, sockets = document["authority"], document["events"], document["sockets"]
    when = datetime.fromtimestamp(document["time"], UTC).strftime("%H:%M:%SZ")
    yield Line(
        f"coordinator {authority['coordinator_id'][:8]}  pid {document['pid']}  {when}  epoch {authority['epoch']}"
        f"  lease {authority['lease_seconds']:.0f} s{'  STOPPING' * document['stopping']}",
        Mark.HEAD,
    )
    if authority["fenced"] is not None:
        yield Line(one_line(f"FENCED: {authority['fenced']}"), Mark.ALERT)
    yield Line(
        f"events     head {number(events['head'])}  durable {number(events['durable'])}  retained from "
        f"{number(events['retained_from'])} ({size(events['retained_bytes'])})"
        f"  pending {number(document['queues']['pending_operations'])}"
        f"  backlog {number(document['queues']['backlog'])}"
    )
    yield Line(
        f"sockets    active {number(sockets['active'])}  handshake {number(sockets['handshake'])}"
        f"  queued {number(document['queues']['subscription_frames'])} frames"
        f"  pinned {size(document['quotas']['pinned_bytes']['used'])}"
    )
    counters = document["counters"]
    if per_second is None:
        yield Line(
            f"so far     commands {number(sum(counters['commands'].values()))}  events sent "
            f"{number(counters['events_sent'])}  frames in {number(counters['frames_in'])} out "
            f"{number(counters['frames_out'])}  stalls {number(counters['credit_stalls'])}"
        )
    else:
        yield Line(
            f"per second commands {number(sum(per_second['commands'].values()))}  events sent "
            f"{number(per_second['events_sent'])}  frames in {number(per_second['frames_in'])} out "
            f"{number(per_second['frames_out'])}  bytes in {size(per_second['bytes_in'])} out "
            f"{size(per_second['bytes_out'])}  stalls {number(per_second['credit_stalls'])}"
        )


def _refusals(counters: Document, per_second: Document | None) -> Iterator[Line]:
    """Refusals and gaps by code: the total, and the rate where it is known."""
    for title, name in (("refusals  ", "refusals"), ("gaps      ", "gaps"), ("full      ", "quota_refusals")):
        totals = counters[name]
        if not totals:
            continue
        parts, hot = [], False
        for code, count in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
            rate = 0.0 if per_second is None else per_second[name].get(code, 0.0)
            hot |= rate > 0
            parts.append(f"{code} {number(count)}" + ("" if per_second is None else f" ({number(rate)}/s)"))
        yield Line(f"{title} {'  '.join(parts)}", Mark.WARN if hot else Mark.PLAIN)


def _quotas(document: Document) -> Iterator[Line]:
    """The quotas near their cap, and the fullest in any case."""
    rows = [row for row in levels_of(document, connections=True) if row.used]
    for index, row in enumerate(rows):
        if index >= _FULLEST and row.percent < NEAR:
            break
        near = row.percent >= NEAR
        owner = row.level if row.who == "-" else f"{row.level} {row.who}"
        text = f"{row.percent:4.0f} %{'!' if near else ' '} {row.resource} {number(row.used)} of {number(row.cap)}"
        yield Line(f"{'quotas    ' if index == 0 else '          '} {text}  {owner}", Mark.WARN if near else Mark.PLAIN)


def _block(title: str, head: Sequence[str], rows: Sequence[tuple[Mark, Sequence[str]]]) -> Iterator[Line]:
    """A table under a blank line; nothing when it is empty."""
    if not rows:
        return
    first, *rest = table((title, *head), [("", *row) for _, row in rows]).split("\n")
    yield Line("")
    yield Line(first, Mark.HEAD)
    for text, (mark, _) in zip(rest, rows, strict=True):
        yield Line(text, mark)


def _used(quotas: Document, resource: str) -> str:
    quota = quotas.get(resource)
    return "-" if quota is None else number(quota["used"])


def _principals(document: Document) -> Iterator[Line]:
    rows = []
    for principal in document["principals"]:
        quotas = principal["quotas"]
        full = any(quota["cap"] and 100 * quota["used"] >= NEAR * quota["cap"] for quota in quotas.values())
        cells = [_used(quotas, name) for name in ("connections", "requests", "subscriptions", "leases")]
        cells += [size(quotas["pinned_bytes"]["used"]), _used(quotas, "queue_frames")]
        cells += [size(quotas["queue_bytes"]["used"]), _used(quotas, "pending_operations"), principal["key_id"]]
        rows.append((Mark.WARN if full else Mark.PLAIN, cells))
    head = ("CONN", "REQ", "SUBS", "LEASES", "PINNED", "QUEUED", "BYTES", "PENDING", "KEY")
    return _block("KEYS", head, rows)


def _subscriptions(document: Document) -> Iterator[Line]:
    found = [(sub, conn) for conn in document["connections"] for sub in conn["subscriptions"]]
    found.sort(key=lambda item: (-item[0]["lag"], item[0]["id"]))
    rows = []
    for sub, conn in found:
        bad = sub["stalled"] or sub["state"] == "PAUSED_GAP"
        rows.append(
            (
                Mark.WARN if bad else Mark.PLAIN,
                (
                    number(sub["lag"]),
                    sub["state"] + (" STALLED" if sub["stalled"] else ""),
                    number(sub["credit_count"]),
                    size(sub["credit_bytes"]),
                    number(sub["queue_frames"]),
                    size(sub["queue_bytes"]),
                    number(sub["deliveries"]),
                    str(conn.get("pid", "?")),
                    sub["id"][:_ID],
                    conn["key_id"],
                ),
            )
        )
    head = ("LAG", "STATE", "CREDIT", "CREDIT BYTES", "QUEUED", "BYTES", "SENT", "PID", "ID", "KEY")
    return _block("SUBS", head, rows)


def _leases(document: Document) -> Iterator[Line]:
    found = [(lease, conn) for conn in document["connections"] for lease in conn["leases"]]
    found.sort(key=lambda item: (item[0]["seconds_left"], item[0]["id"]))
    rows = [
        (
            Mark.PLAIN,
            (
                lease["kind"] + (" ended" if lease["ended"] else ""),
                f"{lease['seconds_left']:.0f} s",
                size(lease["pinned_bytes"]),
                number(lease["pages"]),
                str(conn.get("pid", "?")),
                lease["id"][:_ID],
                conn["key_id"],
            ),
        )
        for lease, conn in found
    ]
    return _block("LEASES", ("KIND", "LEFT", "PINNED", "PAGES", "PID", "ID", "KEY"), rows)


def _connections(document: Document) -> Iterator[Line]:
    def lag(conn: Document) -> int:
        return max((sub["lag"] for sub in conn["subscriptions"]), default=0)

    rows = []
    for conn in sorted(document["connections"], key=lambda conn: (-lag(conn), conn.get("pid", 0))):
        state = f"closing {conn['closing']}" if conn["closing"] else "open" if conn["writable"] else "not reading"
        rows.append(
            (
                Mark.WARN if state != "open" else Mark.PLAIN,
                (
                    number(lag(conn)),
                    state,
                    seconds(conn.get("age_seconds", 0)),
                    number(conn["requests"]),
                    number(conn["control_frames"]),
                    number(len(conn["subscriptions"])),
                    number(len(conn["leases"])),
                    str(conn.get("pid", "?")),
                    conn["key_id"],
                    ",".join(conn["scopes"]),
                ),
            )
        )
    head = ("LAG", "STATE", "AGE", "REQ", "CONTROL", "SUBS", "LEASES", "PID", "KEY", "SCOPES")
    return _block("CONN", head, rows)


def fitted(lines: Sequence[Line], columns: int, rows: int) -> list[Line]:
    """As many lines as a screen holds, none longer than it is wide; the last one tells what is left out."""
    if len(lines) > rows:
        left = len(lines) - rows + 1
        lines = [*lines[: rows - 1], Line(f".. {left} more lines; a taller window or --once shows them", Mark.HEAD)]
    return [Line(line.text[:columns], line.mark) for line in lines]


def painted(line: Line, *, colour: bool) -> str:
    """The line as a terminal takes it."""
    return f"\x1b[{line.mark.value}m{line.text}\x1b[0m" if colour and line.mark.value else line.text
