"""How an operator writes a call or an event, and how a record keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.space.holder import Capability, EventRead
from sidecar.rails.space.may import (
    capability_value,
    hears_text,
    hears_value,
    may_text,
    parse_hears,
    parse_may,
    read_capability,
    read_hears,
)

E = "dev.sidecar.sample"
UID = "b2" * 13


@pytest.mark.req("C13.9-007", "C13.9-009")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{E}:echo", [Capability(E, "echo")]),
        (f"{E}:*", [Capability(E, "*"), Capability(E, "*", "self")]),
        (f"{E}:whoami@self", [Capability(E, "whoami", "self")]),
        (f"{E}:*@owner", [Capability(E, "*", "owner", ("local",))]),
        (f"{E}:end@owner=other", [Capability(E, "end", "owner", ("other",))]),
        (f"{E}:end@child=local", [Capability(E, "end", "child", ("local",))]),
        (f"{E}:end@exact=local.bob.{UID}", [Capability(E, "end", "exact", ("local", "bob", UID))]),
        ("manager:run-answer@self", [Capability("manager", "run-answer", "self")]),
    ],
)
def test_a_call_is_written_and_kept(text: str, found: list[Capability]) -> None:
    assert list(parse_may(text, "local")) == found
    for one in found:
        assert parse_may(may_text(one), "x") in ((one,), (one, Capability(E, "*", "self")))
        assert read_capability(capability_value(one)) == one


@pytest.mark.parametrize(
    "text",
    ["", E, f"{E}:", ":echo", "*:echo", "dev_sidecar:echo", f"{E}:echo@", f"{E}:echo@other", f"{E}:echo@self=x",
     f"{E}:>", f"{E}:a.b", f"{E}:end@child", f"{E}:end@exact=local.bob", f"{E}:end@owner=*", f"{E}:ECHO"],
)  # fmt: skip
def test_what_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_may(text, "local")


@pytest.mark.req("C13.9-M19")
def test_an_event_is_written_and_kept() -> None:
    for text, found in (
        (f"{E}:counted", EventRead(E, E, "counted")),
        (f"{E}:*", EventRead(E, E, "*")),
        (f"{E}:com.acme.x/done", EventRead(E, "com.acme.x", "done")),
    ):
        assert parse_hears(text) == found
        assert parse_hears(hears_text(found)) == found
        assert read_hears(hears_value(found)) == found
    assert hears_text(EventRead(E)) == E
    for bad in ("", E, f"{E}:", f"{E}:/x", f"{E}:x/", f"{E}:a.b", "*:x", f"{E}:*/x"):
        with pytest.raises(InvalidName):
            parse_hears(bad)


@pytest.mark.parametrize(
    "change", [{"target": "x"}, {"journal": 1}, {"endpoint": 5}, {"command": None}, {"mode": ["self"]}]
)
def test_a_record_that_holds_no_capability_is_refused(change: dict[str, Any]) -> None:
    value = {**capability_value(Capability(E, "echo")), **change}
    with pytest.raises((TypeError, InvalidName)):
        read_capability(value)
    with pytest.raises(TypeError):
        read_hears({"endpoint": E, "cluster": 5, "event": "x"})
