"""``sidecar coordinator explain`` as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.coordinator.wire.frames import CoordPing
from tests.unit.cli.test_workload import refused, sidecar

PING = CoordPing(nonce=7).encode()
BAD = bytes.fromhex("000000058281000400")


@pytest.mark.parametrize(
    "text", [PING.hex(), f"0x{PING.hex()}", PING.hex(" ").upper(), PING.hex(":"), f"{PING[:5].hex()}\n{PING[5:].hex()}"]
)
def test_hex_text_is_taken_however_it_is_written(text: str) -> None:
    done = sidecar("coordinator", "explain", text)
    assert (done.returncode, done.stderr) == (0, "")
    head, nonce, total = done.stdout.splitlines()
    assert head.startswith("0x0000  COORD_PING 0x7f  16 bytes  from client or server  legal in PRE or ACT")
    assert nonce == "  0x0008   1 nonce: u64 = 7"
    assert total == "1 frame, 0 faults"


def test_files_and_standard_input_hold_raw_bytes_or_hex(tmp_path: Path) -> None:
    raw, text = tmp_path / "raw", tmp_path / "text"
    raw.write_bytes(PING + PING)
    text.write_text(f"{PING.hex()}\n{PING.hex()}\n")
    shown = {sidecar("coordinator", "explain", source).stdout for source in (raw, text)}
    shown |= {sidecar("coordinator", "explain", "-", stdin=data).stdout for data in (PING + PING, text.read_bytes())}
    assert len(shown) == 1
    assert shown.pop().endswith("2 frames, 0 faults\n")


def test_a_fault_is_named_and_is_the_exit_code() -> None:
    done = sidecar("coordinator", "explain", (PING + BAD).hex())
    assert done.returncode == 1
    assert "  FAULT at 0x0015, E-04: a field id is a varint in 2 bytes, not in its shortest form\n" in done.stdout
    assert done.stdout.endswith("2 frames, 1 fault\n")


def test_json_has_one_object_per_frame_and_one_that_counts() -> None:
    done = sidecar("coordinator", "explain", "--json", (PING + BAD).hex())
    first, second, total = map(json.loads, done.stdout.splitlines())
    assert first["fields"] == [{"offset": 8, "depth": 1, "id": 1, "name": "nonce", "type": "u64", "value": "7"}]
    assert (first["fault"], second["fault"]["row"], second["fault"]["offset"]) == (None, "E-04", 0x15)
    assert total == {"frames": 2, "faults": 1, "cut": False}


def test_sender_and_state_are_judged_on_request() -> None:
    ack = "000000088201040400000007"
    assert "P7-03" in sidecar("coordinator", "explain", "--sent-by", "client", ack).stdout
    assert "P7-04" in sidecar("coordinator", "explain", "--state", "PRE", ack).stdout
    assert sidecar("coordinator", "explain", "--sent-by", "server", "--state", "ACT", ack).returncode == 0


def test_the_output_is_bounded_and_every_fault_still_counts(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    capture.write_bytes(PING * 100 + BAD)
    done = sidecar("coordinator", "explain", "--max-bytes", "256", capture)
    *lines, total = done.stdout.splitlines()
    assert done.returncode == 1
    assert 0 < sum(len(line) + 1 for line in lines) <= 256
    assert total == "101 frames, 1 fault; the output was cut, see --max-bytes 256"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["00000"], "5 hex digits are no whole bytes"),
        (["no-such-file"], "neither hex text nor a file that exists"),
        ([""], "there are no bytes"),
        (["."], "Is a directory"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_read_is_said(arguments: list[str], said: str) -> None:
    assert said in refused(sidecar("coordinator", "explain", *arguments), 2)
