"""What the doctor concludes from what it saw of a broker. Pure: facts in, findings out.

A finding names a fact, why it matters and what to do. No text holds a key, a token or the content of a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sidecar.rails.names.limits import LIVENESS_WINDOW_MS
from sidecar.rails.space.broker_config import MAX_CONTROL_LINE
from sidecar.rails.space.floor import floor_faults, server_faults

SHOWN: Final = 8
"""Names that one finding lists; more are counted."""
SKEW_WARN: Final = 1.0
SKEW_FAIL: Final = LIVENESS_WINDOW_MS / 2000
"""Seconds. Half of the window after which a peer that is silent counts as offline."""
FULL_WARN, FULL_FAIL = 0.8, 0.95


class Level(StrEnum):
    """How a finding stands."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


_CODES: Final = {Level.OK: 0, Level.UNKNOWN: 1, Level.WARN: 1, Level.FAIL: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. ``check`` is a fixed word, ``space`` "" for what concerns the whole broker."""

    check: str
    level: Level
    what: str
    why: str = ""
    do: str = ""
    space: str = ""

    def value(self) -> dict[str, str]:
        """As a JSON object."""
        named = {"check": self.check, "space": self.space, "level": self.level.value}
        return {**named, "what": self.what, "why": self.why, "do": self.do}


def exit_code(findings: Iterable[Finding]) -> int:
    """0 when all is well, 1 with a warning or something that could not be found out, 2 with a failure."""
    return max((_CODES[one.level] for one in findings), default=0)


def unknown(check: str, reason: str, space: str = "", do: str = "") -> Finding:
    """A check that came to no result."""
    return Finding(check, Level.UNKNOWN, f"not found out: {reason}", "what is not known may be broken", do, space)


def listed(names: Iterable[str]) -> str:
    """Some names, and how many there are beside them."""
    all_names = list(names)
    rest = len(all_names) - SHOWN
    return ", ".join(all_names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# ---- the broker ----


def judge_greeting(url: str, info: Mapping[str, Any]) -> list[Finding]:
    """What a broker says of itself before anybody logs in."""
    found = [Finding("broker", Level.OK, f"{url} answers as a nats-server")]
    version, payload = info.get("version"), info.get("max_payload")
    if faults := floor_faults(version, payload):
        why = "a client that needs more refuses to log in"
        found.append(
            Finding("version", Level.FAIL, "; ".join(faults), why, "upgrade nats-server, or raise max_payload")
        )
    else:
        found.append(Finding("version", Level.OK, f"nats-server {version}, max_payload {payload} bytes"))
    if info.get("jetstream") is True:
        found.append(Finding("jetstream", Level.OK, "JetStream is on"))
    else:
        why = "nothing can be stored: no history, no direct messages, no presence"
        do = "add a jetstream block with a store_dir to the broker's configuration and restart it"
        found.append(Finding("jetstream", Level.FAIL, "JetStream is off", why, do))
    return found


def judge_servers(expected: int, answers: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """What every server of the broker says of its limits; ``expected`` is how many there are, 0 when nobody could tell.
    A server that did not answer may be the one with the short line, so that its silence is a failure (C13.12-04)."""
    figures = {str(one.get("server_id")): one for one in answers}
    if not expected or len(figures) < expected:
        of = str(expected) if expected else "nobody knows how many"
        why = "a server with short limits hangs up on large logins, and no client can see why"
        do = "see which server is cut off from the others, and run it again"
        return [Finding("servers", Level.FAIL, f"{len(figures)} of {of} servers told their limits", why, do)]
    found = []
    for one in figures.values():
        if faults := server_faults(one):
            name = one.get("server_name")
            why = "it hangs up on a login or message that other servers take"
            do = f"set max_control_line: {MAX_CONTROL_LINE} and a max_payload of at least 1MB, and restart it"
            found.append(Finding("servers", Level.FAIL, f"{name}: {'; '.join(faults)}", why, do))
    return found or [Finding("servers", Level.OK, f"{len(figures)} of {expected} servers take the largest login")]


def judge_clock(broker: float, before: float, after: float) -> Finding:
    """The broker's clock between two readings of the own one, all in Unix seconds."""
    skew = 0.0 if before <= broker <= after else min(broker - before, broker - after, key=abs)
    text = f"the broker's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this one"
    if abs(skew) <= SKEW_WARN:
        return Finding("clock", Level.OK, text if skew else "the broker's clock agrees with this one")
    level = Level.FAIL if abs(skew) > SKEW_FAIL else Level.WARN
    why = f"peers count as offline after {LIVENESS_WINDOW_MS // 1000} s of silence, and credentials end by the clock"
    return Finding("clock", level, text, why, "synchronise both clocks (chrony, systemd-timesyncd)")


def judge_sync(config: Mapping[str, Any] | None) -> Finding:
    """What an acknowledgement of JetStream means, from the ``jetstream`` configuration of the server's figures."""
    if config is None:
        do = "give --root of the broker's trust, or --monitor with its monitoring address"
        return unknown("acknowledgement", "nobody told the broker's sync_interval", do=do)
    if config.get("sync_always") is True:
        return Finding("acknowledgement", Level.OK, "an acknowledged message is on disk (sync_interval: always)")
    interval = config.get("sync_interval")
    seconds = f"{interval / 1e9:g} s" if type(interval) is int else "some minutes"
    return Finding(
        "acknowledgement",
        Level.WARN,
        f"an acknowledged message is in the system's memory; the disk is synchronised every {seconds}",
        "a lost machine power loses what was acknowledged since; a killed process loses nothing",
        "set sync_interval: always in the jetstream block, or replicate the streams",
    )


def judge_disk(figures: Mapping[str, Any]) -> Finding:
    """How full the store is that JetStream may use, from its figures."""
    config = figures.get("config")
    most = config.get("max_storage") if isinstance(config, dict) else None
    used = figures.get("storage")
    if type(most) is not int or most <= 0 or type(used) is not int:
        return unknown("storage", "the broker does not say how much it may store")
    part = used / most
    text = f"{used} of {most} bytes are used ({part:.0%})"
    if part < FULL_WARN:
        return Finding("storage", Level.OK, text)
    level = Level.FAIL if part >= FULL_FAIL else Level.WARN
    why = "a full store refuses every message"
    return Finding("storage", level, text, why, "raise max_file_store, free the disk, or lower history limits")


def judge_account_disk(space: str, used: object, allowed: int) -> list[Finding]:
    """How full an account is, where its token limits it; ``allowed`` below 0 is unlimited."""
    if allowed < 0 or type(used) is not int:
        return []
    part = 1.0 if allowed == 0 else used / allowed
    level = Level.OK if part < FULL_WARN else Level.WARN if part < FULL_FAIL else Level.FAIL
    text = f"{used} of the account's {allowed} bytes are used"
    why, do = ("", "") if level is Level.OK else ("a full account refuses every message", "raise the account's limit")
    return [Finding("account-storage", level, text, why, do, space)]
