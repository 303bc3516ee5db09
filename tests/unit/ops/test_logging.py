"""Log lines: structure, rate limit with a count, and nothing secret."""

from __future__ import annotations

import io
import json
import re
import stat
from pathlib import Path

import pytest

from sidecar.base.safefile import UnsafeFile
from sidecar.base.secret import Secret
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.ops.logging import Level, Log, RateLimit, open_log, told


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_time_level_event_and_fields() -> None:
    stream = io.StringIO()
    Log(stream, wall=lambda: 1.5, mono=Clock()).info("bound", socket=Path("/run/x"), code=ErrorCode.NOT_FOUND, n=3)
    assert lines(stream) == [
        {
            "time": "1970-01-01T00:00:01.500Z",
            "level": "info",
            "event": "bound",
            "socket": "/run/x",
            "code": "NOT_FOUND",
            "n": 3,
        }
    ]


def test_console_lines_stay_on_one_line() -> None:
    stream = io.StringIO()
    Log(stream, form="console", wall=lambda: 0.0, mono=Clock()).error("failed", why="a\nb", error=OSError("x"))
    assert stream.getvalue() == '1970-01-01T00:00:00.000Z ERROR   failed why="a\\nb" error="OSError: x"\n'


def test_lines_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    log = Log(stream, level=Level.WARNING, mono=Clock())
    log.debug("a")
    log.info("b")
    log.warning("c")
    assert [line["event"] for line in lines(stream)] == ["c"]


def test_a_flood_of_one_event_is_cut_and_counted_without_hiding_others() -> None:
    stream, clock = io.StringIO(), Clock()
    log = Log(stream, limit=RateLimit(2, 10.0), mono=clock)
    for _ in range(7):
        log.info("flood")
    log.info("other")
    clock.now += 10.0
    log.info("flood")
    log.info("flood")
    assert [(line["event"], line.get("suppressed")) for line in lines(stream)] == [
        ("flood", None),
        ("flood", None),
        ("other", None),
        ("flood", 5),
        ("flood", None),
    ]


def test_the_table_of_events_is_bounded() -> None:
    limit = RateLimit(1, 10.0, max_events=3)
    assert [limit.admit(f"event {i}", 0.0) for i in range(50)] == [0] * 50
    assert len(limit._seen) <= 3


@pytest.mark.req("P2-13", "W9-17", "W10-10", "P13-03")
def test_no_secret_and_no_raw_bytes_reach_a_line() -> None:
    canary = b"canary-canary-canary-canary-1234"
    for form in ("json", "console"):
        stream = io.StringIO()
        log = Log(stream, form=form, mono=Clock())
        log.error("x", key=Secret(canary), raw=canary, view=memoryview(canary), listed=[canary], mapped={"k": canary})
        log.error("y", thing=object())
        text = stream.getvalue()
        assert "canary" not in text
        assert canary.hex() not in text
        assert "<Secret>" in text
        assert "<32 bytes>" in text


def test_what_a_peer_has_written_at_length_is_cut() -> None:
    stream = io.StringIO()
    Log(stream, mono=Clock()).warning(
        "refused",
        text="x" * 100_000,
        path=Path("y" * 100_000),
        error=ValueError("z" * 100_000),
        many=["item"] * 1000,
        members={f"name {number}": number for number in range(1000)},
        names={"n" * 100_000: 1},
    )
    (line,) = lines(stream)
    assert line["text"] == "x" * 1000 + "... (100000 characters)"
    assert line["many"] == ["item"] * 32 + ["... 1000 in all"]
    assert isinstance(line["members"], dict)
    assert len(line["members"]) == 32
    assert len(stream.getvalue()) < 8_000


def test_a_fault_of_the_program_tells_its_place_and_not_its_text() -> None:
    with pytest.raises(KeyError) as raised:
        {"a": 1}["a message that somebody wrote"]
    assert re.fullmatch(r"KeyError at test_logging\.py:\d+", told(raised.value))
    assert told(ValueError("a message that somebody wrote")) == "ValueError"
    assert told(FileNotFoundError(2, "No such file", "/run/x")) == "FileNotFoundError: [Errno 2] No such file: '/run/x'"
    assert told(UnsafeFile("/run/x", "is open to others")) == "UnsafeFile: /run/x is open to others"


def test_a_log_that_cannot_be_written_never_raises() -> None:
    stream = io.StringIO()
    stream.close()
    Log(stream, mono=Clock()).error("x")


def test_a_log_file_is_appended_and_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "serve.log"
    for _ in range(2):
        log = open_log("debug", "json", file)
        log.debug("started")
        log.close()
    assert len(file.read_text().splitlines()) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_log_file_is_not_followed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        open_log("info", "json", tmp_path / "link")


def test_without_a_file_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    open_log("info", "console", None).info("hello")
    assert "hello" in capsys.readouterr().err
