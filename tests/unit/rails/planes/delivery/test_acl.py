"""The read lists that the plane keeps: which lifecycle of a principal is the one that lives."""

from __future__ import annotations

from typing import Any

from sidecar.rails.connection.kv import Entry
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.acl import Acl
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.acl import AclRow
from sidecar.rails.space.holder import Form

ANN = Principal("local", "ann")
FIRST, SECOND = Lifecycle(ANN, "a" * 32), Lifecycle(ANN, "b" * 32)
NOBODY: Any = None
"""No connection: nothing is asked."""


def entry(lifecycle: Lifecycle, row: AclRow, revision: int, *, deleted: bool = False) -> Entry:
    return Entry(lifecycle.dot, b"" if deleted else row.encode(), revision, deleted, 0)


def test_the_lifecycle_that_was_written_last_lives_whatever_the_clocks_of_its_writers_say() -> None:
    acl = Acl(Plane(NOBODY, "main", Form.MEDIATED, FIRST))
    row = AclRow(("team.>",), updated_at=9_000)
    acl._take(entry(FIRST, row, 1))
    acl._take(entry(FIRST, row.fenced(9_001), 2))
    acl._take(entry(SECOND, AclRow(("general",), updated_at=5), 3))  # the clock was set back in between
    known = acl.newest(ANN.dot)
    assert known is not None
    assert (known[0], known[1].allow_subscribe) == (SECOND, ("general",))
    acl._take(entry(SECOND, row, 4, deleted=True))
    assert (acl.newest(ANN.dot) or ("",))[0] == FIRST
    acl._take(entry(FIRST, row, 5, deleted=True))
    assert acl.newest(ANN.dot) is None
    assert acl.row(FIRST) is None
