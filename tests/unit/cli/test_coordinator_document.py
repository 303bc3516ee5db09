"""An answer of the admin socket that is not what it should be: one line and an exit code, never a traceback."""

from __future__ import annotations

import copy
import json
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.cli.coordinator_document import fault_of
from sidecar.cli.coordinator_stats import Look, levels_of, rates
from sidecar.cli.coordinator_top_view import view
from sidecar.cli.main import main
from tests.unit.cli.test_coordinator_top import ALICE, connection, document, subscription

Path_ = tuple[str | int, ...]

LEASE: Final = {"id": "f" * 32, "kind": "replay", "seconds_left": 7.0, "pinned_bytes": 20, "pages": 1, "ended": False}
WHOLE: Final = document(connection(1, ALICE, subscription(1), leases=[LEASE]))
WRONG: Final[tuple[Any, ...]] = (
    None,
    "x",
    "\x1b[2J",
    -1,
    1.5,
    1e300,
    math.nan,
    math.inf,
    10**30,
    True,
    [],
    [1],
    {},
    {"x": "y"},
)


def members(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """The place of every member, however deep."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield (*at, name)
        yield from members(item, (*at, name))


def changed(at: Path_, *replacement: Any) -> dict[str, Any]:
    """The whole document with another value at one place, or without it."""
    found = copy.deepcopy(WHOLE)
    holder: Any = found
    for step in at[:-1]:
        holder = holder[step]
    if replacement:
        holder[at[-1]] = replacement[0]
    else:
        del holder[at[-1]]
    return found


def spelt(at: Path_) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).removeprefix(".")


def show(shown: dict[str, Any]) -> None:
    """Everything that the commands make of a document, alone and beside another one of the same process."""
    view(shown, None)
    levels_of(shown, connections=True)
    for before, after in ((WHOLE, shown), (shown, WHOLE)):
        view(after, rates(Look(before, 1.0), Look(after, 2.0)))


def test_a_document_that_is_whole_is_taken() -> None:
    assert fault_of(WHOLE) is None
    assert fault_of(document()) is None
    assert fault_of({**WHOLE, "later": object(), "counters": {**WHOLE["counters"], "later": "x"}}) is None


@pytest.mark.parametrize("at", [pytest.param(at, id=spelt(at)) for at in members(WHOLE)])
def test_whatever_is_missing_or_wrong_is_named_or_shown(at: Path_) -> None:
    for shown in (changed(at), *(changed(at, value) for value in WRONG)):
        fault = fault_of(shown)
        if fault is None:
            show(shown)
        else:
            assert spelt(at).startswith(fault) or fault.startswith(spelt(at)), "the place where it was changed"


@pytest.mark.parametrize(
    "at",
    [
        ("pid",),
        ("time",),
        ("authority", "lease_seconds"),
        ("quotas", "pinned_bytes"),
        ("principals", 0, "quotas", "queue_bytes"),
        ("connections", 0, "subscriptions", 0, "lag"),
        ("connections", 0, "leases", 0, "seconds_left"),
        ("counters", "refusals"),
    ],
)
def test_a_member_that_is_read_must_be_there(at: Path_) -> None:
    assert fault_of(changed(at)) == spelt(at)
    assert fault_of(changed(at, "x")) == spelt(at)


@pytest.mark.parametrize("at", [("connections", 0, "pid"), ("connections", 0, "age_seconds")])
def test_what_a_transport_adds_may_be_missing(at: Path_) -> None:
    assert fault_of(changed(at)) is None
    assert fault_of(changed(at, "x")) == spelt(at)


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb"])
def test_no_text_that_steers_a_terminal_is_taken(text: str) -> None:
    assert fault_of(changed(("connections", 0, "key_id"), text)) == "connections[0].key_id"
    assert fault_of(changed(("counters", "gaps"), {text: 1})) == "counters.gaps"
    assert fault_of(changed(("authority", "fenced"), text)) is None, "which is escaped where it is shown"


@pytest.mark.parametrize("arguments", [["top", "--once"], ["top"], ["top", "--json"], ["quota"], ["quota", "--json"]])
def test_the_command_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "admin.sock"
    body = json.dumps({"version": 1, **changed(("connections", 0, "quotas"), 7)}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()

        def say() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + body)

        saying = threading.Thread(target=say)
        saying.start()
        with pytest.raises(SystemExit) as ended:
            main(["coordinator", *arguments, "--admin-socket", str(path)])
        saying.join()
    assert ended.value.code == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        f"sidecar: {path}: the answer has no usable connections[0].quotas; use a client of the server's release\n"
    )
