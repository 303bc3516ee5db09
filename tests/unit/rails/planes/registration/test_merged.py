"""The merged read: which pairs of halves may be used."""

from __future__ import annotations

import pytest

from sidecar.rails.planes.registration.merged import BEHIND, Half, Merged, merge

SPEC = Half(40, {"endpoint": "com.acme.echo"})


def status(observed: object, revision: int = 50) -> Half:
    return Half(revision, {"epoch": 0, "state": "ready", "observedSpecRevision": observed})  # type: ignore[dict-item]


@pytest.mark.req("C13.4-08", "C13.4-05")
def test_both_revisions_and_what_was_observed_are_told() -> None:
    merged = merge(SPEC, status(40))
    assert isinstance(merged, Merged)
    assert (merged.observed, merged.stale) == (40, False)
    assert merged.value() == {
        "spec": {"revision": 40, "value": {"endpoint": "com.acme.echo"}},
        "status": {"revision": 50, "value": {"epoch": 0, "state": "ready", "observedSpecRevision": 40}},
        "observed": 40,
    }
    alone = merge(SPEC, None)
    assert isinstance(alone, Merged)
    assert (alone.observed, alone.stale, list(alone.value())) == (None, False, ["spec"])


@pytest.mark.req("C13.4-09")
def test_a_status_by_an_earlier_spec_is_valid_and_stale() -> None:
    merged = merge(SPEC, status(39))
    assert isinstance(merged, Merged)
    assert merged.stale


@pytest.mark.req("C13.4-10")
def test_a_spec_that_is_behind_is_never_used_with_that_status() -> None:
    assert merge(SPEC, status(41)) is BEHIND


def test_a_status_without_its_spec_is_of_a_registration_that_has_ended() -> None:
    assert merge(None, status(40)) == Merged(None, None)
    assert isinstance(merge(SPEC, status(True)), Merged)


@pytest.mark.req("C13.4-12")
def test_a_change_of_either_half_is_seen() -> None:
    merged = merge(SPEC, status(40))
    assert isinstance(merged, Merged)
    assert not merged.changed(40, 50)
    assert merged.changed(39, 50)
    assert merged.changed(40, 0)
    assert not Merged(None, None).changed(0, 0)
