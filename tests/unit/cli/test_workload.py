"""``sidecar workload`` as an operator runs it: real processes, real files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from sidecar.base.ed25519 import SigningKey, digest_text, fingerprint
from sidecar.base.safefile import write_private
from sidecar.base.secret import Secret
from sidecar.cli.workload import DurationType, InstantType, ScopesType
from sidecar.coordinator.authority.registry import load_registry
from tests.canary import CANARY, spellings_in

KEY = SigningKey(Secret(b"\xa2" * 32))
KEY_HEX = KEY.public_key.hex()
KEY_ID = digest_text(fingerprint(KEY.public_key))
DIGEST_LINE = re.compile(r"sha256:[0-9a-f]{64}\n")
SOON = ("--expires-in", "90d")


def sidecar(*arguments: object, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", *map(str, arguments)],
        input=stdin if isinstance(stdin, bytes) else stdin.encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def refused(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that a refusal prints."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("sidecar: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def enrol(state: Path, key: str = KEY_HEX, scopes: str = "WORK_READ", *options: str) -> str:
    done = sidecar("workload", "add-key", "--state-dir", state, "--scopes", scopes, *(options or SOON), stdin=key)
    assert done.returncode == 0, done.stderr
    assert DIGEST_LINE.fullmatch(done.stdout)
    return done.stdout.strip()


@pytest.mark.req("W9-09")
def test_the_verbs() -> None:
    shown = sidecar("workload", "--help").stdout
    for verb in ("authority", "add-key", "list", "revoke", "keygen"):
        assert re.search(rf"^  {verb}\b", shown, re.M)
        assert sidecar("workload", verb, "--help").returncode == 0
    assert "--init" in sidecar("workload", "authority", "--help").stdout


@pytest.mark.req("W9-10", "W9-11", "W9-13", "W2-02", "W2-14")
def test_authority_is_created_by_init_only_and_once(state: Path) -> None:
    assert f"--init --state-dir {state}\n" in refused(sidecar("workload", "authority", "--state-dir", state))
    assert not state.exists()
    made = sidecar("workload", "authority", "--state-dir", state, "--init")
    assert made.returncode == 0
    assert DIGEST_LINE.fullmatch(made.stdout)
    assert made.stderr == ""
    seed = (state / "workload-authority.ed25519").read_bytes()
    assert made.stdout.strip() == digest_text(fingerprint(SigningKey(Secret(seed)).public_key))
    assert "exists already" in refused(sidecar("workload", "authority", "--state-dir", state, "--init"))
    assert (state / "workload-authority.ed25519").read_bytes() == seed
    shown = sidecar("workload", "authority", "--state-dir", state)
    assert (shown.returncode, shown.stdout) == (0, made.stdout)


@pytest.mark.req("W9-12", "W2-18", "W2-23")
def test_a_public_key_from_standard_input(state: Path) -> None:
    before = time.time()
    assert enrol(state, KEY_HEX + "\n", "work-read,ADMIN") == KEY_ID
    record = load_registry(state).records[0]
    assert record.public_key == KEY.public_key
    assert record.scopes == 0x21
    assert before + 90 * 86_400 - 1 <= record.expires_at <= time.time() + 90 * 86_400


@pytest.mark.req("W9-12")
def test_a_public_key_from_a_file_or_from_keygen(state: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(KEY_HEX.upper() + "\n")
    done = sidecar("workload", "add-key", "--state-dir", state, "--file", tmp_path / "key.pub", "--scopes", 1, *SOON)
    assert (done.returncode, done.stdout.strip()) == (0, KEY_ID)
    made = sidecar("workload", "keygen", tmp_path / "ci.key")
    assert made.returncode == 0
    lines = dict(line.split() for line in made.stdout.splitlines())
    assert enrol(state, made.stdout) == lines["key_id"]
    seed = (tmp_path / "ci.key").read_bytes()
    assert (tmp_path / "ci.key").stat().st_mode & 0o7777 == 0o600
    assert SigningKey(Secret(seed)).public_key.hex() == lines["public_key"]


def test_every_verb_as_json(state: Path, tmp_path: Path) -> None:
    def document(*arguments: object, stdin: str = "") -> Any:
        done = sidecar("workload", *arguments, "--json", stdin=stdin)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    made = document("keygen", tmp_path / "ci.key")
    assert set(made) == {"file", "public_key", "key_id"}
    assert made["file"] == str(tmp_path / "ci.key")
    authority = document("authority", "--init", "--state-dir", state)
    assert authority == document("authority", "--state-dir", state)
    assert authority["authority"] == digest_text(fingerprint(bytes.fromhex(authority["public_key"])))
    enrolment = ("add-key", "--state-dir", state, "--scopes", "WORK_READ", *SOON)
    added = document(*enrolment, stdin=made["public_key"])
    assert (added["key_id"], added["public_key"], added["state"]) == (made["key_id"], made["public_key"], "active")
    assert document("list", "--public-keys", "--state-dir", state) == [added]
    revoked = document("revoke", "--state-dir", state, made["key_id"])
    assert (revoked["key_id"], revoked["state"]) == (made["key_id"], "revoked")
    assert document("list", "--state-dir", state) == [revoked]


@pytest.mark.req("W9-12", "W9-16", "W9-17", "W10-10", "P2-13")
@pytest.mark.parametrize("argument", [CANARY.hex(), CANARY.hex().upper(), KEY_HEX, f"--key={CANARY.hex()}"])
def test_key_bytes_are_no_argument_and_are_not_echoed(state: Path, argument: str) -> None:
    done = sidecar("workload", "add-key", "--state-dir", state, "--scopes", 1, *SOON, argument)
    assert not spellings_in(refused(done, 2))
    assert KEY_HEX not in done.stderr
    assert not state.exists()


@pytest.mark.req("W9-17", "W10-10", "P2-13")
@pytest.mark.parametrize(
    "verb", [("keygen", "name"), ("revoke",), ("list",), ("authority",), (), ("add-key", "--scopes")]
)
def test_a_key_typed_anywhere_is_not_echoed(state: Path, verb: tuple[str, ...]) -> None:
    done = sidecar("workload", *verb, CANARY.hex())
    assert done.returncode == 2
    assert not spellings_in(done.stdout + done.stderr)


@pytest.mark.req("W9-12", "W9-17")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        CANARY,
        CANARY.hex()[:-2].encode(),
        CANARY.hex().encode() + b"00",
        b"x" * 100_000,
        KEY_HEX.encode() + b"\n" * 4_096,
        b"public_key",
        b"\xff" * 64,
    ],
    ids=len,
)
def test_other_input_is_refused_and_not_echoed(state: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "input").write_bytes(content)
    arguments = ("workload", "add-key", "--state-dir", state, "--scopes", 1, *SOON)
    for done in (sidecar(*arguments, stdin=content), sidecar(*arguments, "--file", tmp_path / "input")):
        assert "does not begin with a public key" in refused(done)
        assert not spellings_in(done.stderr)
    assert not state.exists()


@pytest.mark.req("W2-19")
def test_a_weak_key_is_refused(state: Path) -> None:
    done = sidecar("workload", "add-key", "--state-dir", state, "--scopes", 1, *SOON, stdin="00" * 32)
    assert "small order" in refused(done)
    assert not state.exists()


@pytest.mark.req("W9-12")
def test_a_fifo_as_file_is_refused_instead_of_waited_for(state: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    done = sidecar("workload", "add-key", "--state-dir", state, "--file", tmp_path / "fifo", "--scopes", 1, *SOON)
    assert "not a regular file" in refused(done)


@pytest.mark.req("W9-12")
@pytest.mark.parametrize(
    "options",
    [
        ("--scopes", "1"),
        ("--scopes", "1", "--expires-in", "1d", "--expires-at", "1999999999"),
        ("--scopes", "0", *SOON),
        ("--scopes", "64", *SOON),
        ("--scopes", "READ", *SOON),
        ("--scopes", "", *SOON),
        SOON,
        ("--scopes", "1", "--expires-in", "0"),
        ("--scopes", "1", "--expires-in", "1y"),
        ("--scopes", "1", "--expires-at", "tomorrow"),
        ("--scopes", "1", "--expires-at", "2030-01-01T00:00:00"),
        ("--scopes", "1", "--expires-at", "99999999999999999999"),
    ],
)
def test_wrong_options_are_usage_errors(state: Path, options: tuple[str, ...]) -> None:
    done = sidecar("workload", "add-key", "--state-dir", state, *options, stdin=KEY_HEX)
    assert "--help" in refused(done, 2)
    assert not state.exists()


def test_an_expiry_in_the_past_is_refused(state: Path) -> None:
    done = sidecar("workload", "add-key", "--state-dir", state, "--scopes", 1, "--expires-at", 1, stdin=KEY_HEX)
    assert "past" in refused(done)


@pytest.mark.req("W9-13", "W2-18", "W2-02")
def test_list_shows_ids_ceilings_expiries_and_states(state: Path) -> None:
    enrol(state, KEY_HEX, "all", "--expires-at", "2100-01-31T12:00:00Z")
    other = enrol(state, SigningKey(Secret(b"\xa4" * 32)).public_key.hex(), "WORK_COMMAND")
    assert sidecar("workload", "revoke", "--state-dir", state, other).returncode == 0
    table = sidecar("workload", "list", "--state-dir", state).stdout.splitlines()
    assert table[0].split() == ["KEY", "ID", "SCOPES", "EXPIRES", "STATE"]
    rows = {line.split()[0]: line for line in table[1:]}
    assert rows.keys() == {KEY_ID, other}
    assert rows[KEY_ID].split()[1:] == [
        "WORK_READ,WORK_COMMAND,TERMINAL_CONTROL,ARTIFACT_READ,SIGNAL_ACK,ADMIN",
        "2100-01-31T12:00:00Z",
        "active",
    ]
    assert re.search(r"revoked \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", rows[other])
    assert KEY_HEX not in "".join(table)
    assert KEY_HEX in sidecar("workload", "list", "--state-dir", state, "--public-keys").stdout


@pytest.mark.req("W9-13", "W2-18")
def test_list_as_json(state: Path) -> None:
    enrol(state, KEY_HEX, "3", "--expires-at", "4000000000")
    listed = json.loads(sidecar("workload", "list", "--state-dir", state, "--json", "--public-keys").stdout)
    assert listed == [
        {
            "key_id": KEY_ID,
            "service": "phux-coordinator",
            "scopes": 3,
            "expires_at": 4_000_000_000,
            "revoked_at": None,
            "state": "active",
            "public_key": KEY_HEX,
        }
    ]
    (without,) = json.loads(sidecar("workload", "list", "--state-dir", state, "--json").stdout)
    assert "public_key" not in without


@pytest.mark.req("W9-13")
def test_list_tells_expired_keys_and_far_expiries(state: Path) -> None:
    enrol(state, KEY_HEX, "1", "--expires-at", str(2**64 - 1))
    assert str(2**64 - 1) in sidecar("workload", "list", "--state-dir", state).stdout
    path = state / "workload-keys"
    path.write_bytes(path.read_bytes().replace(str(2**64 - 1).encode(), b"1"))
    assert sidecar("workload", "list", "--state-dir", state).stdout.splitlines()[1].split()[2:] == [
        "1970-01-01T00:00:01Z",
        "expired",
    ]


@pytest.mark.req("W9-13", "W2-03")
def test_revoke(state: Path) -> None:
    enrol(state)
    done = sidecar("workload", "revoke", "--state-dir", state, KEY_ID)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{KEY_ID} revoked at ")
    again = sidecar("workload", "revoke", "--state-dir", state, KEY_ID)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert load_registry(state).records[0].revoked_at is not None
    assert "not enrolled" in refused(sidecar("workload", "revoke", "--state-dir", state, "sha256:" + "0" * 64))
    for wrong in (KEY_ID.upper(), KEY_ID[:-1], KEY_ID.removeprefix("sha256:"), "x"):
        assert "key id" in refused(sidecar("workload", "revoke", "--state-dir", state, wrong), 2)


@pytest.mark.req("W9-12")
def test_an_enrolled_key_is_changed_by_replace_only(state: Path) -> None:
    enrol(state)
    arguments = ("workload", "add-key", "--state-dir", state, "--scopes", "all", *SOON)
    assert "--replace" in refused(sidecar(*arguments, stdin=KEY_HEX))
    assert sidecar(*arguments, "--replace", stdin=KEY_HEX).returncode == 0
    assert load_registry(state).records[0].scopes == 63


@pytest.mark.req("W2-11", "W2-12", "W2-20", "W2-21")
def test_unsafe_and_malformed_material_is_reported_in_one_line(state: Path) -> None:
    sidecar("workload", "authority", "--state-dir", state, "--init")
    enrol(state)
    (state / "workload-authority.ed25519").chmod(0o644)
    (state / "workload-keys").write_bytes(b'{"version":1,"keys":[{}]}')
    line = refused(sidecar("workload", "authority", "--state-dir", state))
    assert line.endswith(f"run: chmod 600 {state}/workload-authority.ed25519\n")
    line = refused(sidecar("workload", "list", "--state-dir", state))
    assert f"{state}/workload-keys admits nobody until it is repaired: key 1 of the registry" in line
    state.chmod(0o755)
    for verb in ("authority", "list"):
        assert f"run: chmod 700 {state}\n" in refused(sidecar("workload", verb, "--state-dir", state))


@pytest.mark.req("W9-11")
def test_keygen_never_overwrites(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"precious")
    assert "exists already" in refused(sidecar("workload", "keygen", tmp_path / "key"))
    assert (tmp_path / "key").read_bytes() == b"precious"
    line = refused(sidecar("workload", "keygen", tmp_path / "missing here" / "key"))
    assert line.endswith(f"run: mkdir -m 700 '{tmp_path}/missing here'\n")


FORCED_CRASH = """
import sys
import sidecar.cli.workload as workload
from sidecar.cli.main import main
def boom(*_):
    raise SystemError("forced")
workload.digest_text = boom
main(sys.argv[1:])
"""


@pytest.mark.req("W9-17", "W10-10", "W9-13", "P2-13")
def test_no_verb_and_no_crash_shows_the_authority_seed(state: Path, tmp_path: Path) -> None:
    state.mkdir(mode=0o700)
    write_private(state / "workload-authority.ed25519", Secret(CANARY))
    write_private(tmp_path / "workload.key", Secret(CANARY))
    outputs = [sidecar("workload", "authority", "--state-dir", state, *option) for option in ((), ("--init",))]
    outputs.append(sidecar("workload", "keygen", tmp_path / "workload.key"))
    outputs.append(sidecar("workload", "add-key", "--state-dir", state, "--scopes", 1, *SOON, stdin=CANARY))
    enrol(state, SigningKey(Secret(CANARY)).public_key.hex())
    outputs.append(sidecar("workload", "list", "--state-dir", state, "--json", "--public-keys"))
    assert not spellings_in((state / "workload-keys").read_bytes())
    for options in ([], ["-X", "dev"], ["-X", "faulthandler"]):
        arguments = ["workload", "authority", "--state-dir", str(state)]
        crashed = subprocess.run(
            [sys.executable, *options, "-c", FORCED_CRASH, *arguments], capture_output=True, text=True, check=False
        )
        assert crashed.returncode == 1
        assert "SystemError: forced" in crashed.stderr
        outputs.append(crashed)
    for done in outputs:
        assert not spellings_in(done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("text", "bits"),
    [("WORK_READ", 1), ("work_command", 2), ("work-read, signal-ack", 0x11), ("all", 63), ("0x3f", 63), ("31", 31)],
)
def test_scopes(text: str, bits: int) -> None:
    assert ScopesType().convert(text, None, None) == bits


@pytest.mark.parametrize("text", ["", "0", "-1", "64", "0x40", "1.0", "9x", "WORK_READ,", "all,ADMIN", "\u0661"])
def test_other_scopes_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        ScopesType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1", 1), ("30s", 30), ("30m", 1800), ("12h", 43_200), ("90d", 7_776_000), ("2w", 1_209_600)]
)
def test_durations(text: str, seconds: int) -> None:
    assert DurationType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0d", "-1d", "1.5h", "1 d", "d", "1D", "9" * 13, "\u0661d"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DurationType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1999999999", 1_999_999_999), ("1970-01-01T01:00:00+01:00", 0), ("2000-01-01T00:00:00Z", 946_684_800)],
)
def test_instants(text: str, seconds: int) -> None:
    assert InstantType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1.5", "2030-01-01", "2030-01-01T00:00:00", "\u0661"])
def test_other_instants_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        InstantType().convert(text, None, None)
