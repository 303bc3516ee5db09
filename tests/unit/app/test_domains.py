"""Claims of domains: who may register which endpoint names."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from sidecar.app.domains import authority, claim, claims, confirm, release
from sidecar.app.endpoint_records import EndpointRecord, EndpointShelf, Stage, shelves
from sidecar.app.space_links import SpaceFailed
from sidecar.base.safefile import DirLock, UnsafeFile
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.planes.registration.barrier import Progress
from sidecar.rails.planes.registration.faults import Denied
from sidecar.rails.planes.registration.gates import Intent
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust

ANN, BOB = "u_" + "a" * 26, "u_" + "b" * 26
ME = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A space as its creation leaves it on disk."""
    trust = BrokerTrust.open(tmp_path / "trust", os.urandom)
    (tmp_path / "spaces").mkdir(mode=0o700)
    space = SpaceTrust.open(tmp_path / "spaces" / "main", "main", os.urandom)
    space.account_token(trust, 1_800_000_000)
    record = tmp_path / "spaces" / "main" / "space.json"
    record.write_text('{"form": "mediated"}')
    record.chmod(0o600)
    return tmp_path


def denied(root: Path, endpoint: str, owner: str) -> str:
    with pytest.raises(Denied) as caught:
        authority(root, "main", endpoint, owner)
    assert caught.value.code == Code.PERMISSION_DENIED
    return str(caught.value)


def kept(root: Path, record: EndpointRecord) -> None:
    shelf = EndpointShelf(root, "main", record.endpoint, record.instance)
    shelf.open()
    with DirLock(shelf.directory) as lock:
        shelf.write(record, lock)


@pytest.mark.req("C13.2-02")
def test_names_of_one_label_are_the_operators(root: Path) -> None:
    assert authority(root, "main", "registry", "local") == 0
    for name in ("manager", "foo"):
        assert "one label" in denied(root, name, ANN)


@pytest.mark.req("C13.2-03")
def test_a_domain_is_registered_below_by_its_owner_alone(root: Path) -> None:
    assert "no claim" in denied(root, "com.acme.x", ANN)
    made = claim(root, "main", "com.acme", ANN)
    assert authority(root, "main", "com.acme.x", ANN) == made.revision == 1
    assert authority(root, "main", "com.acme", ANN) == 1
    for owner in (BOB, "local"):
        assert "another owner" in denied(root, "com.acme.x", owner)
    for name in ("com.acmex", "com.other", "com.acme-x.y", "com"):
        denied(root, name, ANN)


@pytest.mark.req("C13.2-03")
def test_the_longest_claim_decides(root: Path) -> None:
    claim(root, "main", "com.acme", ANN)
    part = claim(root, "main", "com.acme.bob", BOB)
    assert authority(root, "main", "com.acme.bob.x", BOB) == part.revision == 2
    denied(root, "com.acme.bob.x", ANN)
    assert authority(root, "main", "com.acme.ann", ANN) == 1
    assert [(one.domain, one.owner) for one in claims(root, "main")] == [("com.acme", ANN), ("com.acme.bob", BOB)]


@pytest.mark.req("C13.2-03")
def test_a_claim_is_made_once_and_not_taken_from_its_owner(root: Path) -> None:
    made = claim(root, "main", "com.acme", ANN)
    assert claim(root, "main", "com.acme", ANN) == made
    with pytest.raises(Denied):
        claim(root, "main", "com.acme", BOB)
    release(root, "main", "com.acme")
    assert claim(root, "main", "com.acme", BOB).revision == 2
    for wrong in ("acme", "Com.acme", "com..acme", "", "com.acme_x"):
        with pytest.raises((SpaceFailed, InvalidName)):
            claim(root, "main", wrong, ANN)
    with pytest.raises(InvalidName):
        claim(root, "main", "com.x", "somebody")
    with pytest.raises(SpaceFailed, match="not claimed"):
        release(root, "main", "com.none")


def test_a_claim_in_use_is_not_given_up(root: Path) -> None:
    claim(root, "main", "com.acme", ANN)
    record = EndpointRecord("com.acme.x", ME, ANN, ME)
    for state in (
        record.completed(0, 4, lent=False),
        EndpointRecord("com.acme.x", ME, ANN, ME, progress=Progress(ME, Intent.REGISTRATION, 0, 0)),
    ):
        kept(root, state)
        with pytest.raises(SpaceFailed, match="in use"):
            release(root, "main", "com.acme")
    kept(root, EndpointRecord("com.acme.x", ME, ANN, ME, Stage.RETIRED, registered=True))
    assert release(root, "main", "com.acme").owner == ANN


def test_what_is_on_disk_is_owner_only_and_refused_when_it_is_spoilt(root: Path) -> None:
    claim(root, "main", "com.acme", ANN)
    path = root / "spaces" / "main" / "endpoints" / "domains.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for text in ("{", "[]", "{}", '{"claims": {}, "revision": 1}', '{"claims": [{"domain": "x"}], "revision": 1}'):
        path.write_text(text)
        with pytest.raises(UnsafeFile):
            claims(root, "main")


def test_the_record_of_an_instance_is_read_back_and_refused_when_it_is_spoilt(root: Path) -> None:
    record = EndpointRecord("com.acme.x", ME, ANN, ME, progress=Progress(ME, Intent.REGISTRATION, 3, 2, frozen=True))
    kept(root, record)
    (shelf,) = shelves(root, "main")
    assert shelf.read() == record
    assert record.lifecycle.principal.dot == f"{ANN}.ep_0123456789abcdef0123"
    path = shelf.directory / "record.json"
    value = json.loads(path.read_text())
    odd: dict[str, tuple[object, ...]] = {"operation": ([], 1, {}), "givenUp": ([], 1, {"U": "x"})}
    for name in value:
        for wrong in odd.get(name, ({}, 1.5, "?")):
            path.write_text(json.dumps({**value, name: wrong}))
            with pytest.raises(UnsafeFile):
                shelf.read()
    path.write_text(json.dumps({**value, "endpoint": "com.acme.y"}))
    with pytest.raises(UnsafeFile, match="another"):
        shelf.read()


@pytest.mark.req("C13.2-23", "C13.2-03")
def test_a_part_of_a_domain_goes_to_nobody_else_while_an_instance_is_registered_below_it(root: Path) -> None:
    claim(root, "main", "com.acme", ANN)
    kept(root, EndpointRecord("com.acme.x", ME, ANN, "c" * 26, registered=True))
    with pytest.raises(SpaceFailed, match="in use by com"):
        claim(root, "main", "com.acme.x", BOB)
    assert authority(root, "main", "com.acme.x", ANN) == 1
    assert claim(root, "main", "com.acme.y", BOB).owner == BOB  # where nothing is registered
    assert claim(root, "main", "com.acme.x", ANN).owner == ANN  # the owner itself may split its domain
    kept(root, EndpointRecord("com.acme.z", ME, ANN, "c" * 26, progress=Progress("o" * 32, Intent.REGISTRATION, 0, 0)))
    with pytest.raises(SpaceFailed, match="in use by com"):
        claim(root, "main", "com.acme.z", BOB)


@pytest.mark.req("C13.2-03")
def test_authority_is_confirmed_as_it_was_read(root: Path) -> None:
    first = claim(root, "main", "com.acme", ANN)
    confirm(root, "main", "com.acme.x", ANN, first.revision)
    release(root, "main", "com.acme")
    with pytest.raises(Denied, match="no claim"):
        confirm(root, "main", "com.acme.x", ANN, first.revision)
    claim(root, "main", "com.acme", ANN)
    with pytest.raises(Denied, match="changed"):
        confirm(root, "main", "com.acme.x", ANN, first.revision)
