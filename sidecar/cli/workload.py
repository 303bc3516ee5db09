"""``sidecar workload``: the authority key and the keys that may log in (W9-09..W9-13)."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sidecar.base.ed25519 import PUBLIC_KEY_BYTES, digest_text, fingerprint, parse_digest_text
from sidecar.base.keysource import create_seed_file
from sidecar.base.safefile import quoted
from sidecar.cli.main import ExplainedGroup
from sidecar.coordinator.authority import keyfile, registry
from sidecar.coordinator.authority.grants import KeyRecord
from sidecar.coordinator.wire.enums import KNOWN_SCOPES, Scope
from sidecar.coordinator.wire.ids import U64_MAX

_Command = TypeVar("_Command", bound=Callable[..., Any])

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"([0-9]{1,12})([smhdw]?)")
_PUBLIC_KEY: Final = re.compile(r"(?:public_key\s+)?([0-9a-fA-F]{64})")
_INPUT_LIMIT: Final = 4_096


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/sidecar/authority``, usually ``~/.local/state/sidecar/authority``."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "sidecar" / "authority"


def _state_dir_option(function: _Command) -> _Command:
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state_dir,
        help="Owner-only directory of authority key and registry.  [default: ~/.local/state/sidecar/authority]",
    )(function)


_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


class ScopesType(click.ParamType[int]):
    """Scope names separated by commas (WORK_READ,WORK_COMMAND; any case, - for _), ``all``, or the bits as a number."""

    name = "scopes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip().upper().replace("-", "_")
        if text == "ALL":
            return KNOWN_SCOPES
        if text[:1].isascii() and text[:1].isdigit():
            try:
                bits = int(text, 0)
            except ValueError:
                bits = 0
            if not 0 < bits <= KNOWN_SCOPES:
                self.fail(f"the bits of a scope set are 1..{KNOWN_SCOPES}", param, ctx)
            return bits
        bits = 0
        for name in text.split(","):
            if name.strip() not in Scope.__members__:
                self.fail(f"scopes are {', '.join(Scope.__members__)}, or all", param, ctx)
            bits |= Scope[name.strip()]
        return bits


class DurationType(click.ParamType[int]):
    """A number with unit s, m, h, d or w; seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _DURATION.fullmatch(str(value))
        if match is None or int(match[1]) == 0:
            self.fail("write a duration as 90d, 12h, 30m, 2w or seconds", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


class InstantType(click.ParamType[int]):
    """Unix seconds, or an ISO 8601 time with its zone; Unix seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text.isascii() and text.isdigit() and len(text) <= 20:
            return int(text)
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            instant = None
        if instant is None or instant.tzinfo is None:
            self.fail("write a time as Unix seconds or like 2030-01-31T12:00:00Z", param, ctx)
        return int(instant.timestamp())


class KeyIdType(click.ParamType[bytes]):
    """The text form of a key id; its 32 bytes."""

    name = "key_id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        try:
            return parse_digest_text(str(value))
        except ValueError:
            self.fail("a key id is written sha256: and 64 lowercase hex digits, as list prints it", param, ctx)


_EXIT_HELP: Final = """\b
Exit codes:
  0  done
  1  refused, or a file is missing, unsafe or malformed
  2  wrong usage
"""


@click.group(name="workload", cls=ExplainedGroup, epilog=_EXIT_HELP)
def command() -> None:
    """Keys that may log in to the coordinator.

    Private keys are files of 32 raw bytes with mode 0600 (see keygen). They are never given on a command line, in a
    variable or on standard input; only public keys travel, and they are not secret.
    """


@command.command()
@_state_dir_option
@click.option("--init", is_flag=True, help="Create the authority key; an existing one is never overwritten.")
@_json_option
def authority(state_dir: Path, init: bool, as_json: bool) -> None:
    """Print the authority's fingerprint, which clients pin."""
    key = keyfile.init_authority_key(state_dir, os.urandom) if init else keyfile.load_authority_key(state_dir)
    shown = digest_text(fingerprint(key.public_key))
    click.echo(json.dumps({"authority": shown, "public_key": key.public_key.hex()}) if as_json else shown)


@command.command(name="add-key", short_help="Enrol a public key; prints its key id.")
@_state_dir_option
@click.option(
    "--file",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the public key (64 hex digits, or what keygen prints); standard input without this option.",
)
@click.option("--scopes", type=ScopesType(), required=True, help="Ceiling: WORK_READ,WORK_COMMAND,.. or all or bits.")
@click.option("--expires-in", type=DurationType(), help="Lifetime: 90d, 12h, ..")
@click.option("--expires-at", type=InstantType(), help="Absolute expiry: Unix seconds or ISO 8601 with zone.")
@click.option("--replace", "replace_existing", is_flag=True, help="Change scopes and expiry of an enrolled key.")
@_json_option
@click.argument("misplaced", nargs=-1, metavar="", type=click.UNPROCESSED)
def add_key(
    state_dir: Path,
    source: Path | None,
    scopes: int,
    expires_in: int | None,
    expires_at: int | None,
    replace_existing: bool,
    as_json: bool,
    misplaced: Sequence[str],
) -> None:
    """Enrol a public key, read from standard input or --file, and print its key id.

    Example: sidecar workload keygen ci.key | sidecar workload add-key --scopes WORK_READ --expires-in 90d
    """
    if misplaced:
        # Not echoed: it may be the private key that somebody pasted.
        raise click.UsageError("key bytes are not taken from the command line; use standard input or --file")
    if (expires_in is None) == (expires_at is None):
        raise click.UsageError("give exactly one of --expires-in and --expires-at")
    now = time.time()
    expiry = expires_at if expires_at is not None else int(now) + (expires_in or 0)
    if expiry > U64_MAX:
        raise click.UsageError("the expiry is too far away")
    public_key = _read_public_key(source)
    record = registry.add_key(state_dir, public_key, scopes, expiry, now=now, replace_existing=replace_existing)
    click.echo(json.dumps(_as_json(record, now, True)) if as_json else digest_text(record.key_id))


@command.command(name="list")
@_state_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON array instead of a table.")
@click.option("--public-keys", is_flag=True, help="Show the public keys too.")
def list_keys(state_dir: Path, as_json: bool, public_keys: bool) -> None:
    """Show the enrolled keys: key id, scope ceiling, expiry, state."""
    records = registry.load_registry(state_dir).records
    now = time.time()
    if as_json:
        click.echo(json.dumps([_as_json(record, now, public_keys) for record in records]))
        return
    rows = [("KEY ID", "SCOPES", "EXPIRES", "STATE", *(["PUBLIC KEY"] if public_keys else []))]
    rows += [_as_row(record, now, public_keys) for record in records]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@command.command()
@_state_dir_option
@_json_option
@click.argument("key_id", type=KeyIdType())
def revoke(state_dir: Path, key_id: bytes, as_json: bool) -> None:
    """Revoke the key KEY_ID for good; live sessions of it end."""
    now = time.time()
    record = registry.revoke_key(state_dir, key_id, now=now)
    if as_json:
        click.echo(json.dumps(_as_json(record, now, False)))
        return
    click.echo(f"{digest_text(record.key_id)} revoked at {_instant(record.revoked_at or 0)}")


@command.command(short_help="Write a fresh private key to FILE.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_json_option
def keygen(file: Path, as_json: bool) -> None:
    """Write a fresh private key to FILE (mode 0600, never overwritten) and print public key and key id."""
    try:
        key = create_seed_file(file, os.urandom)
    except FileExistsError:
        raise click.ClickException(f"{file} exists already; choose another name") from None
    except FileNotFoundError:
        raise click.ClickException(f"{file.parent} does not exist; run: mkdir -m 700 {quoted(file.parent)}") from None
    public_key, key_id = key.public_key.hex(), digest_text(fingerprint(key.public_key))
    if as_json:
        click.echo(json.dumps({"file": str(file), "public_key": public_key, "key_id": key_id}))
        return
    click.echo(f"public_key {public_key}")
    click.echo(f"key_id     {key_id}")


def _read_public_key(source: Path | None) -> bytes:
    name = "standard input" if source is None else str(source)
    if source is None:
        data = sys.stdin.buffer.read(_INPUT_LIMIT + 1)
    else:
        # A fifo would make the open wait for a writer; the check is for clarity, not for safety: the key is public.
        if not stat.S_ISREG(os.stat(source).st_mode):
            raise click.ClickException(f"{source} is not a regular file")
        with source.open("rb") as stream:
            data = stream.read(_INPUT_LIMIT + 1)
    lines = data.decode("ascii", "replace").split("\n", 1)
    match = _PUBLIC_KEY.fullmatch(lines[0].strip())
    if match is None or len(data) > _INPUT_LIMIT:
        # The content is not shown: it may be a private key.
        raise click.ClickException(
            f"{name} does not begin with a public key: {2 * PUBLIC_KEY_BYTES} hex digits, or the output of keygen"
        )
    return bytes.fromhex(match[1])


def _state(record: KeyRecord, now: float) -> str:
    if record.revoked_at is not None:
        return "revoked"
    return "active" if record.expires_at > now else "expired"


def _as_json(record: KeyRecord, now: float, public_keys: bool) -> dict[str, object]:
    shown: dict[str, object] = {
        "key_id": digest_text(record.key_id),
        "service": record.service,
        "scopes": record.scopes,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "state": _state(record, now),
    }
    if public_keys:
        shown["public_key"] = record.public_key.hex()
    return shown


def _as_row(record: KeyRecord, now: float, public_keys: bool) -> tuple[str, ...]:
    names = [scope.name or "" for scope in Scope if scope & record.scopes]
    state = _state(record, now)
    if record.revoked_at is not None:
        state = f"{state} {_instant(record.revoked_at)}"
    row = (digest_text(record.key_id), ",".join(names) or str(record.scopes), _instant(record.expires_at), state)
    return (*row, record.public_key.hex()) if public_keys else row


def _instant(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)  # beyond the calendar
