"""Headers and other literals, and the rule that no name is spelled outside of the names package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.rails.names import Lifecycle, Principal, headers
from tests.unit.rails.names.samples import UID

ROOT = Path(__file__).resolve().parents[4]
HOME = ROOT / "sidecar" / "rails" / "names"
SPELLED = re.compile(
    r"\$(?:JS|KV|O|SYS|SRV)\."
    r"|_INBOX"
    r"|(?<![\w.])cotal(?:_|\.(?!schema\.json$))"
    r"|(?<![A-Za-z0-9_])(?:KV|OBJ|CHAT|DM|TASK|INBOX|DLV|EP[A-Z](?:_REQ)?|WFJ)_(?![A-Z])"
    r"|(?<![A-Za-z0-9_])(?:chathist|dm|svc|dlv|fanout|reader|hist|canon|timerw|recw|wfj)_"
    r"|(?<![A-Za-z0-9_-])(?:Nats|Cotal)-[A-Z]"
)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Text constants of a module, without docstrings."""
    tree = ast.parse(source)
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documented:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")


def spelled(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in literals(source) if SPELLED.search(text)]


OTHERS = sorted(path for path in (ROOT / "sidecar").rglob("*.py") if HOME not in path.parents)


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_is_spelled_outside_of_the_names_package(path: Path) -> None:
    assert spelled(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        'x = "cotal.main.chat"',
        'x = f"cotal.{space}.chat"',
        'x = f"KV_{bucket}"',
        'x = "$KV." + bucket',
        'x = b"$JS.API.INFO"',
        'x = f"dm_{owner}"',
        'x = "Nats-Msg-Id"',
        'f("cotal_presence_main")',
        'x = f"{root}_INBOX"',
    ],
)
def test_the_rule_sees_a_name(source: str) -> None:
    assert spelled(source)


def test_the_rule_sees_no_name_where_there_is_none() -> None:
    assert (
        spelled('"""cotal.x"""\nx = ["ai.cotal.guarded", "TASK_COUNT", "admin_x", "nats-server", "cotal.schema.json"]')
        == []
    )
    assert len(OTHERS) > 100
    assert spelled((HOME / "subjects.py").read_text(encoding="utf-8"))


def test_literals() -> None:
    assert headers.MESSAGE_ID == "Nats-Msg-Id"
    assert headers.EXPECTED_LAST_SEQUENCE == "Nats-Expected-Last-Subject-Sequence"
    assert (headers.DELIVERY_LIMIT, headers.DELIVERY_LIMIT_NONE) == ("Cotal-Delivery-Limit", "none")
    assert (headers.TRANSFER_OFFSET, headers.TRANSFER_CHUNK) == ("Cotal-Offset", "Cotal-Chunk")
    assert (headers.ROLLUP, headers.ROLLUP_SUBJECT) == ("Nats-Rollup", "sub")
    assert (headers.ACK, headers.NAK, headers.TERM, headers.PROGRESS) == (b"+ACK", b"-NAK", b"+TERM", b"+WPI")
    assert headers.ANYCAST_NOTICE == "cotalAnycastNotice"


@pytest.mark.parametrize("name", ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"])
def test_provenance_is_seen_in_any_case(name: str) -> None:
    for spelling in (name, name.lower(), name.upper(), name.swapcase()):
        assert headers.carries_provenance(["Nats-Msg-Id", spelling])


def test_a_live_publish_carries_no_provenance() -> None:
    assert not headers.carries_provenance([])
    assert not headers.carries_provenance(["Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Subject-Token", "Cotal-Offset"])


def test_the_id_of_a_copy_is_that_of_its_message_and_member() -> None:
    member = Lifecycle(Principal("local", "bob"), UID)
    assert headers.copy_id("m:1", member) == f"m:1:local.bob:{UID}"
    assert headers.copy_id("", member) is None


@pytest.mark.req("C13.3-49", "C6.1-21")
def test_only_the_brokers_own_word_says_that_nobody_listens() -> None:
    nobody = {"Status": "503"}
    assert headers.says_nobody(nobody, b"", "a.b")
    assert headers.says_nobody({**nobody, "Nats-Subject": "a.b", "Description": "x"}, b"", "a.b")
    for found, data in (
        (None, b""),
        ({}, b""),
        ({"Status": "404"}, b""),
        (nobody, b"x"),
        ({**nobody, "Nats-Subject": "a.c"}, b""),
        *(({**nobody, name: "1"}, b"") for name in ("nats-stream", "Nats-Sequence", "NATS-TIME-STAMP")),
    ):
        assert not headers.says_nobody(found, data, "a.b")
