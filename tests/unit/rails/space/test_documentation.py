"""What the handbook promises of spaces, and what it says that it does not promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.rails.space.holder import Form

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.req("C9-46")
def test_the_handbook_says_what_is_claimed_and_what_is_not() -> None:
    page = " ".join((ROOT / "docs" / "operations.md").read_text().split())
    _, found, section = page.partition("## A space on NATS ")
    assert found
    section = section.partition(" ## ")[0]
    claimed, found, denied = section.partition("Not claimed:")
    assert found
    assert "containment and authenticity under one trusted broker" in claimed
    for words in ("non-repudiation", "relay", "secrecy of direct messages from the broker", "admin", "who posts where"):
        assert words in denied
    assert all(form in section for form in Form)
