"""``sidecar coordinator explain``: what the bytes of a frame or of a capture say."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final, cast

import click

from sidecar.cli.connection_options import Command
from sidecar.cli.coordinator_stats import document_line
from sidecar.coordinator.explain import Explained, Sender, explain, text_of
from sidecar.coordinator.wire.table import STATES, State

MAX_INPUT: Final = 64 * 1_048_576
"""Bytes of a capture."""
_HEX: Final = re.compile(rb"(?:0[xX])?[0-9a-fA-F:\s]*")
_NO_DIGIT: Final = re.compile(rb"[:\s]")

_EXIT_HELP: Final = """\b
Exit codes:
  0  every frame is good
  1  a fault was found
  2  wrong usage, or nothing that can be read
"""


@click.command(name="explain", cls=Command, epilog=_EXIT_HELP)
@click.argument("source", metavar="HEX|FILE|-")
@click.option("--sent-by", type=click.Choice(["client", "server"]), help="Judge the direction: who sent all of it.")
@click.option("--state", type=click.Choice(STATES), help="Judge the states: the receivers' before the first frame.")
@click.option(
    "--max-bytes",
    type=click.IntRange(256, MAX_INPUT),
    default=262_144,
    show_default=True,
    help="Bytes of output; what does not fit is counted.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per frame, and one that counts.")
@click.pass_context
def explain_command(
    ctx: click.Context, source: str, sent_by: str | None, state: str | None, max_bytes: int, as_json: bool
) -> None:
    """Decode frames of the protocol and name the first fault of each.

    The bytes come as hex text (spaces, colons and line ends do not matter), or from a file or - for standard input
    with hex text or the raw bytes. Frames stand one after the other. A fault comes with its offset, what is wrong and
    the row of the specification that it breaks. Proofs, nonces, cursors and the fencing token are shown as the
    beginning of their digest only.
    """
    frames = faults = 0
    room = max_bytes
    for found in explain(_read(source), sent_by=cast("Sender | None", sent_by), state=cast("State | None", state)):
        frames += 1
        faults += found.fault is not None
        room = _show(found, room, as_json=as_json)
    if as_json:
        click.echo(document_line({"frames": frames, "faults": faults, "cut": room < 0}))
    else:
        cut = f"; the output was cut, see --max-bytes {max_bytes}" if room < 0 else ""
        click.echo(f"{frames} frame{'s' * (frames != 1)}, {faults} fault{'s' * (faults != 1)}{cut}")
    ctx.exit(1 if faults else 0)


def _show(found: Explained, room: int, *, as_json: bool) -> int:
    """Print what fits; what is left of the room, below 0 once something did not fit."""
    lines = [document_line(found.as_json())] if as_json else text_of(found)
    for line in lines:
        if room < 0:
            break
        room -= len(line.encode()) + 1
        if room >= 0:
            click.echo(line)
    return room


def _read(source: str) -> bytes:
    """The bytes that the argument means. Raises UsageError."""
    if source == "-":
        data = sys.stdin.buffer.read(MAX_INPUT + 1)
    elif os.path.exists(source):
        try:
            with Path(source).open("rb") as stream:
                data = stream.read(MAX_INPUT + 1)
        except OSError as error:
            raise click.UsageError(f"{source}: {error.strerror}") from None
    else:
        data = source.encode("utf-8", "surrogateescape")
        if _HEX.fullmatch(data) is None:
            raise click.UsageError("this is neither hex text nor a file that exists")
    if len(data) > MAX_INPUT:
        raise click.UsageError(f"a capture has at most {MAX_INPUT} bytes")
    return _bytes_of(data)


def _bytes_of(data: bytes) -> bytes:
    if _HEX.fullmatch(data) is not None:
        digits = _NO_DIGIT.sub(b"", data)
        digits = digits[2:] if digits[:2] in (b"0x", b"0X") else digits
        if len(digits) % 2:
            raise click.UsageError(f"{len(digits)} hex digits are no whole bytes")
        data = bytes.fromhex(digits.decode("ascii"))
    if not data:
        raise click.UsageError("there are no bytes")
    return data
