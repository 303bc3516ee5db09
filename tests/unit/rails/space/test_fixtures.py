"""The largest credentials: the same bytes each time, and the bounds that are reckoned from them (C13.12-04, -05)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from sidecar.rails.names.endpoint import parse_request
from sidecar.rails.space.broker_config import CONNECT_ENVELOPE, MAX_CONTROL_LINE, MAX_MINTED_JWT_BYTES
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.fixtures import (
    COMMANDS,
    ENDPOINTS,
    connect_line,
    fixture_holder,
    fixture_token,
    user_key,
)
from sidecar.rails.space.floor import LARGEST_CONNECT_LINE, MIN_CONTROL_LINE, MIN_PAYLOAD, server_faults
from sidecar.rails.space.grants import MAX_GRANT_BYTES, GrantRefused, grant_bytes, permissions
from sidecar.rails.space.holder import Profile
from sidecar.rails.space.trust import SpaceTrust, new_user

FIXTURES = (Profile.AGENT, Profile.ENDPOINT)


@pytest.mark.req("C13.12-05", "C13.9-015")
@pytest.mark.parametrize(
    ("profile", "size", "digest"),
    [
        (Profile.AGENT, 61_744, "0001ce7c4e268456421813fbd80a67f22e96075561bae79eea328365a787147c"),
        (Profile.ENDPOINT, 10_773, "59d0a56130bc6ee4cc8c20378cc840692e53240d4eec1604682e982d298b4b46"),
    ],
)
def test_a_fixture_is_the_same_bytes_each_time(profile: Profile, size: int, digest: str) -> None:
    first, second = fixture_token(profile), fixture_token(profile)
    assert first == second
    assert (len(first), hashlib.sha256(first.encode()).hexdigest()) == (size, digest)


@pytest.mark.req("C13.9-015", "C13.9-007")
def test_the_agent_has_every_command_twice_with_its_submission_and_the_progress_of_its_goals() -> None:
    holder = fixture_holder(Profile.AGENT, user_key(Profile.AGENT).public)
    granted = permissions(Profile.AGENT, holder, MAX_MINTED_JWT_BYTES)
    rows = set(granted.publish.allow)
    assert len(ENDPOINTS) == 3
    assert len(COMMANDS) == 12
    for endpoint in ENDPOINTS:
        token = endpoint.replace(".", "_")
        caller = f"{holder.lifecycle.dot}"
        owner = holder.lifecycle.principal.owner
        for command in COMMANDS:
            for target in ("self", f"owner.{owner}"):
                for rail in (f"one.{token}", f"all.{token}", f"inst.{token}.*"):
                    row = f"cotal.fixture.ep.{rail}.{command}.{target}.{caller}.*"
                    assert row in rows
                    assert parse_request(row.replace("*", "n" * 26)).values["command"] == command
                assert f"cotal.fixture.epj.{token}.{command}.{target}.{caller}" in rows
        assert f"cotal.fixture.epe.{token}.*.*.goal.{caller}.>" in granted.subscribe.allow


@pytest.mark.req("C13.12-04", "C13.12-05", "C13.9-013", "C13.9-014", "C13.14-08")
def test_the_bounds_follow_from_the_fixtures() -> None:
    lines = [len(connect_line(fixture_token(profile))) for profile in FIXTURES]
    assert max(lines) == LARGEST_CONNECT_LINE
    assert LARGEST_CONNECT_LINE < MIN_CONTROL_LINE <= MAX_CONTROL_LINE == 65536
    assert MAX_MINTED_JWT_BYTES == MAX_CONTROL_LINE - CONNECT_ENVELOPE
    assert all(len(fixture_token(profile)) <= MAX_MINTED_JWT_BYTES for profile in FIXTURES)
    # The policy gate is another, tighter bound: it refuses the agent, which a space that raises it could mint.
    holder = fixture_holder(Profile.AGENT, user_key(Profile.AGENT).public)
    with pytest.raises(GrantRefused, match=r"C13\.9-013"):
        permissions(Profile.AGENT, holder)
    serving = fixture_holder(Profile.ENDPOINT, user_key(Profile.ENDPOINT).public)
    assert grant_bytes(permissions(Profile.ENDPOINT, serving)) <= MAX_GRANT_BYTES


@pytest.mark.req("C13.12-04", "C13.12-06", "C13.12-01")
def test_a_server_with_a_short_line_or_small_payload_is_found() -> None:
    good = {"version": "2.12.0", "max_payload": 1 << 20, "max_control_line": MIN_CONTROL_LINE}
    assert server_faults(good) == []
    for change in (
        {"max_control_line": MIN_CONTROL_LINE - 1}, {"max_control_line": 4096}, {"max_control_line": None},
        {"max_control_line": "65536"}, {"max_control_line": True}, {"max_payload": 64 * 1024},
        {"max_payload": MIN_PAYLOAD - 1}, {"max_payload": None}, {"version": "2.11.9"}, {"version": None},
    ):  # fmt: skip
        assert len(server_faults({**good, **change})) == 1, change
    assert len(server_faults({})) == 3


@pytest.mark.req("C13.9-014")
def test_a_token_that_fits_no_line_is_not_made(tmp_path: Path) -> None:
    trust = SpaceTrust.open(tmp_path / "main", "main", os.urandom)
    key = new_user(os.urandom)
    rows = tuple(f"cotal.main.chat.local.alice.{'c' * 900}{n:03}" for n in range(60))
    with pytest.raises(GrantRefused, match=r"C13\.9-014"):
        trust.mint("x", Permissions(Access(rows)), key, 1_800_000_000, 60)
    assert trust.mint("x", Permissions(Access(rows[:40])), key, 1_800_000_000, 60)
