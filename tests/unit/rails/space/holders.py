"""Holders for tests of grants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.holder import Ending, Form, Holder, Service

UID = "a1" * 13
INSTANCE = "i2" * 13
CONNECTION = "U" + "A" * 55
ALICE = Holder(
    space="main",
    lifecycle=Lifecycle(Principal("local", "alice"), UID),
    connection=CONNECTION,
    form=Form.COMPATIBLE,
    subscribe=("general", "team.>"),
    allow_publish=("general", "team.>"),
    roles=("reviewer",),
    service=Service(INSTANCE, 7, ("durable-join", "durable-leave")),
    ends=Ending(Lifecycle(Principal("local", "bob"), "b2" * 13), ("general", "team.>")),
)


def holder(**changes: Any) -> Holder:
    """Alice, changed."""
    return replace(ALICE, **changes)
