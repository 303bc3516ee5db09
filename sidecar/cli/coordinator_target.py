"""Which coordinator the ``sidecar coordinator`` commands talk to, with whose key, and what their errors mean."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click
import uvloop

from sidecar.base.ed25519 import InvalidKey, digest_text, parse_digest_text
from sidecar.base.keysource import load_signing_key
from sidecar.base.safefile import UnsafeFile, ensure_private_dir, quoted
from sidecar.cli.connection_options import CommandFailed, FiniteType, connection_option, read_ready
from sidecar.cli.main import one_line
from sidecar.cli.workload import ScopesType
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_errors import (
    AuthorityChanged,
    AuthorityConflict,
    CannotConnect,
    ConnectionLost,
    ContinuityLost,
    OutcomeUnknown,
    PeerFault,
    VerificationFailed,
)
from sidecar.coordinator.client_trust import Admission
from sidecar.coordinator.pins import PinFile
from sidecar.coordinator.wire.enums import KNOWN_CAPABILITIES, KNOWN_SCOPES, Capability, ErrorCode
from sidecar.coordinator.wire.errors import LocalProtocolError, ProtocolError

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """Exit codes of ``sidecar coordinator``."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NO_CONNECTION = 3
    NOT_VERIFIED = 4
    UNKNOWN = 5


EXIT_HELP: Final = """\b
Exit codes:
  0  done
  1  refused by the server (the line names the code)
  2  wrong usage, an unsafe key or pin file included
  3  cannot connect, or the connection was lost
  4  the authority changed, or could not be verified
  5  the outcome is unknown: look the operation up; or a watch lost continuity
"""

ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.VERSION_INCOMPATIBLE: "use a client of the server's version",
    ErrorCode.AUTHENTICATION_FAILED: "check that this key is enrolled, not revoked, not expired and has these scopes; "
    "on the server: sidecar workload list",
    ErrorCode.CAPABILITY_REQUIRED: "the server does not offer this feature",
    ErrorCode.SCOPE_DENIED: "use a key that has it, and ask for it when you give --scopes",
    ErrorCode.STALE_AUTHORITY: "the server was activated anew; run the command again",
    ErrorCode.AUTHORITY_FENCED: "the server lost its authority; wait for its restart and look the operation up",
    ErrorCode.OPERATION_CONFLICT: "this operation id belongs to another command; use a fresh one",
    ErrorCode.REVISION_CONFLICT: "the object is not in the expected state; take a snapshot and decide again",
    ErrorCode.CURSOR_INVALID: "the cut or lease is not usable any more; take a fresh snapshot",
    ErrorCode.RESOURCE_EXHAUSTED: "a limit is reached; wait, or close other connections of this key",
    ErrorCode.NOT_FOUND: "it does not exist or this key may not see it",
}
"""What to do about a refusal, by code."""

OFFERED: Final = int(KNOWN_CAPABILITIES)
"""Capabilities that the commands offer: all that show more records, and EVENT_REPLAY to heal by."""


@dataclass(frozen=True, slots=True)
class Target:
    """Everything about the connection that a command line says."""

    socket: Path
    key_source: str
    pins: Path
    witness: WitnessPin | None
    authority: bytes | None
    scopes: int
    require: int
    as_json: bool
    wait: float
    recover: float
    patience: float

    async def connect(self, policy: ReconnectPolicy, notice: Callable[[ev.Event], None]) -> CoordinatorClient:
        """Connect within ``wait`` seconds and verify; a connection that is lost later is made again by ``policy``."""
        return await CoordinatorClient.connect(
            self.socket,
            load_signing_key(self.key_source),
            pins=self.open_pins(),
            witness=self.witness,
            authority=self.authority,
            scopes=self.scopes,
            capabilities=OFFERED,
            required=self.require,
            client_name="sidecar-cli",
            patience=self.patience,
            first=ReconnectPolicy.lasting(self.wait),
            reconnect=policy,
            notice=notice,
        )

    def open_pins(self) -> PinFile:
        """The pin file; its directory is made owner-only when missing."""
        ensure_private_dir(self.pins.parent)
        return PinFile(self.pins)


def default_pins() -> Path:
    """``$XDG_STATE_HOME/sidecar/client/pins.json``, usually under ``~/.local/state``."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "sidecar" / "client" / "pins.json"


class HexType(click.ParamType[bytes]):
    """Exactly so many bytes in lowercase or uppercase hex."""

    name = "hex"

    def __init__(self, size: int) -> None:
        self._size = size

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        try:
            data = bytes.fromhex(str(value))
        except ValueError:
            data = b""
        if len(data) != self._size or not any(data):
            self.fail(f"write exactly {2 * self._size} hex digits, not all zero", param, ctx)
        return data


class FingerprintType(click.ParamType[bytes]):
    """The text form of an authority fingerprint."""

    name = "fingerprint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        try:
            return parse_digest_text(str(value))
        except ValueError:
            self.fail("a fingerprint is written sha256: and 64 lowercase hex digits", param, ctx)


_CAPABILITIES: Final = [bit.name or "" for bit in Capability if bit & OFFERED]


_OPTIONS: Final = (
    connection_option(
        "--dev",
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory of a running `sidecar dev`: gives socket, key, witness and pins.",
    ),
    connection_option("--as", "workload", default="operator", show_default=True, help="With --dev: whose key to use."),
    connection_option("--socket", type=click.Path(path_type=Path), help="Unix socket of the coordinator."),
    connection_option("--key-file", type=click.Path(), help="Private key: owner-only file of 32 bytes."),
    connection_option(
        "--key-fd", type=click.IntRange(0), help="Private key: inherited descriptor that delivers 32 bytes."
    ),
    connection_option("--key-credential", metavar="NAME", help="Private key: credential of the service manager."),
    connection_option("--pins", type=click.Path(path_type=Path, dir_okay=False), help="Pin file of this client."),
    connection_option("--witness-id", type=HexType(16), help="Witness to trust, needed until the authority is pinned."),
    connection_option("--witness-key", type=HexType(32), help="Public key of that witness."),
    connection_option("--authority", type=FingerprintType(), help="Accept only this authority."),
    connection_option("--scopes", type=ScopesType(), help="Scopes to ask for.  [default: all that the key has]"),
    connection_option(
        "--require", multiple=True, type=click.Choice(_CAPABILITIES), help="Refuse a server without this."
    ),
    connection_option(
        "--wait",
        type=FiniteType(0, 86_400),
        default=0.0,
        show_default=True,
        help="Seconds to wait for the server.",
    ),
    connection_option(
        "--recover",
        type=FiniteType(0, 86_400),
        default=10.0,
        show_default=True,
        help="Seconds to look up what became of a command whose reply was lost.",
    ),
    connection_option(
        "--timeout",
        "patience",
        type=FiniteType(0.01, 3_600),
        default=10.0,
        show_default=True,
        help="Seconds for each answer.",
    ),
    click.option("--json", "as_json", is_flag=True, help="JSON instead of tables."),
)


def connection_options(function: F) -> F:
    """The options of the connection, and --json, that every command has."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def target_of(options: dict[str, Any]) -> Target:
    """Takes the connection options out of a command's options. Raises UsageError for what does not fit together."""
    dev: Path | None = options.pop("dev")
    ready = {} if dev is None else read_ready(dev)
    workload = _workload(ready, options.pop("workload"))
    coordinator = ready.get("coordinator", {})
    require = 0
    for name in options.pop("require"):
        require |= Capability[name]
    socket = options.pop("socket") or coordinator.get("socket")
    if socket is None:
        raise click.UsageError("give --socket, or --dev with the directory of a running `sidecar dev`")
    authority = options.pop("authority")
    if authority is None and dev is not None:
        authority = parse_digest_text(coordinator["authority_fingerprint"])
    return Target(
        Path(socket),
        _key_source(options, workload),
        options.pop("pins") or (default_pins() if dev is None else dev / "pins.json"),
        _witness(options, coordinator),
        authority,
        options.pop("scopes") or workload.get("scopes") or int(KNOWN_SCOPES),
        require,
        options.pop("as_json"),
        options.pop("wait"),
        options.pop("recover"),
        options.pop("patience"),
    )


def run(
    target: Target,
    work: Callable[[CoordinatorClient], Awaitable[int]],
    ids: dict[str, str] | None = None,
    policy: ReconnectPolicy | None = None,
) -> int:
    """Connect, do the work, give its exit code. Known errors become one line on stderr and, with --json, a document.

    ``ids`` names what the command was about to touch: it goes into the document of an error. ``policy`` is how a lost
    connection is made again; by default long enough to look up what became of a lost reply.
    """
    again = policy or ReconnectPolicy.lasting(max(target.wait, target.recover))

    async def body() -> int:
        client = await target.connect(again, lambda event: _notice(target, event))
        async with client:
            return await work(client)

    try:
        return uvloop.run(body())
    except (ProtocolError, LocalProtocolError, UnsafeFile, InvalidKey, OSError, *_OWN) as error:
        if isinstance(error, BrokenPipeError):
            raise
        fail(target, error, ids or {})


_OWN: Final = (CannotConnect, ConnectionLost, ContinuityLost, OutcomeUnknown, PeerFault, VerificationFailed)


def fail(target: Target, error: Exception, ids: dict[str, str]) -> NoReturn:
    """End the command with what the error means."""
    code, name, text = explain(error, target.pins)
    if target.as_json:
        document = {"error": {"name": name, "message": one_line(text), "exit_code": int(code)}, **ids}
        click.echo(json.dumps(document))
    raise CommandFailed(text, code) from error


def explain(error: Exception, pins: Path) -> tuple[Exit, str, str]:
    """Exit code, name and one line that says what to do. Decided by types and codes, never by texts (P13-04).

    ``pins`` is the pin file in use, which the advice names.
    """
    file = f"--pins {quoted(pins)}"
    match error:
        case ProtocolError():
            advice = ADVICE.get(error.code)
            said = error.message.replace(" ", "_").upper() != error.code.name and error.message
            detail = f" ({said})" if said else ""
            return Exit.REFUSED, error.code.name, f"{error.code.name}{detail}" + (f": {advice}" if advice else "")
        case OutcomeUnknown():
            look_up = f"sidecar coordinator operation get {error.operation_id.hex()}"
            return Exit.UNKNOWN, "OUTCOME_UNKNOWN", f"the outcome is unknown ({error.__cause__}); run: {look_up}"
        case ContinuityLost():
            return Exit.UNKNOWN, "CONTINUITY_LOST", f"{error}; run watch again to start from a fresh snapshot"
        case AuthorityConflict():
            return (
                Exit.NOT_VERIFIED,
                "AUTHORITY_CONFLICT",
                f"{error}; find out which server is real, then: sidecar coordinator pins forget {file} FINGERPRINT",
            )
        case AuthorityChanged():
            hints = {
                "fingerprint": f"; if this is intended: sidecar coordinator pins trust {file} FINGERPRINT",
                "expected": "; --authority says which one is accepted",
            }
            return Exit.NOT_VERIFIED, "AUTHORITY_CHANGED", f"{error}{hints.get(error.check, '')}"
        case VerificationFailed():
            hint = "; use --witness-id and --witness-key" * (error.check == "witness")
            return Exit.NOT_VERIFIED, "NOT_VERIFIED", f"the server is not trusted: {error}{hint} (check: {error.check})"
        case PeerFault():
            return Exit.NOT_VERIFIED, "PEER_FAULT", str(error)
        case CannotConnect() | ConnectionLost():
            return Exit.NO_CONNECTION, "NO_CONNECTION", str(error)
        case FileNotFoundError():
            return (
                Exit.USAGE,
                "LOCAL",
                f"{error.filename}: {error.strerror}; sidecar workload keygen makes a private key",
            )
        case OSError():
            where = f"{error.filename}: " if isinstance(error.filename, str) else ""
            return Exit.USAGE, "LOCAL", f"{where}{error.strerror or error}"
        case _:
            return Exit.USAGE, "LOCAL", str(error)


def _notice(target: Target, event: ev.Event) -> None:
    """What a user must hear although the command goes on."""
    if isinstance(event, ev.Ready) and event.welcome.admission is Admission.FIRST:
        pinned = digest_text(event.welcome.fingerprint)
        click.echo(f"sidecar: first use: pinned authority {pinned} in {target.pins}", err=True)
    elif isinstance(event, ev.RenewalRefused):
        click.echo(f"sidecar: a renewal of the certificate was refused: {one_line(event.detail)}", err=True)


def _workload(ready: dict[str, Any], name: str) -> dict[str, Any]:
    if not ready:
        return {}
    workloads: dict[str, dict[str, Any]] = ready["workloads"]
    if name not in workloads:
        raise click.UsageError(f"--as takes one of {', '.join(workloads)}")
    return workloads[name]


def _key_source(options: dict[str, Any], workload: dict[str, Any]) -> str:
    file, fd, credential = options.pop("key_file"), options.pop("key_fd"), options.pop("key_credential")
    given = [
        source
        for source, value in ((f"file:{file}", file), (f"fd:{fd}", fd), (f"credential:{credential}", credential))
        if value is not None
    ]
    if len(given) > 1:
        raise click.UsageError("give one of --key-file, --key-fd and --key-credential")
    if given:
        return given[0]
    if not workload:
        raise click.UsageError("give --key-file, --key-fd or --key-credential")
    return f"file:{workload['key_file']}"


def _witness(options: dict[str, Any], coordinator: dict[str, Any]) -> WitnessPin | None:
    witness_id, witness_key = options.pop("witness_id"), options.pop("witness_key")
    if (witness_id is None) != (witness_key is None):
        raise click.UsageError("--witness-id and --witness-key go together")
    if witness_id is None and coordinator:
        witness_id, witness_key = (
            bytes.fromhex(coordinator["witness_id"]),
            bytes.fromhex(coordinator["witness_public_key"]),
        )
    try:
        return None if witness_id is None else WitnessPin(witness_id, witness_key)
    except ValueError as error:
        raise click.UsageError(f"--witness-key: {error}") from None


def read_document(document: str | None, file: Path | None, limit: int) -> bytes:
    """The bytes of a document: the argument as it is, a file, or standard input for ``-``. None are no document."""
    if (document is None) == (file is None):
        raise click.UsageError("give the document once: as an argument, or --file PATH, or --file - for standard input")
    if document is not None and document != "-":
        data = document.encode("utf-8", "surrogateescape")
    elif document == "-" or file == Path("-"):
        data = sys.stdin.buffer.read(limit + 1)
    else:
        assert file is not None
        try:
            with file.open("rb") as stream:
                data = stream.read(limit + 1)
        except OSError as error:
            raise click.UsageError(f"{file}: {error.strerror}") from None
    if len(data) > limit:
        raise click.UsageError(f"a document has at most {limit} bytes")
    if not data:
        raise click.UsageError("the document is empty; give it as an argument, or --file PATH, or - for standard input")
    return data
