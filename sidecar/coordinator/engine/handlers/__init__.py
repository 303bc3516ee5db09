"""What each command needs and does (tables P6-t2 and P7-t1).

``COMMANDS`` is total over CommandKind. A kind without a handler is known and not served by this version: the server
does not offer its capability bit, so it is always refused before admission (P5-17, P7-26).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sidecar.coordinator.engine.commands import Change, Situation
from sidecar.coordinator.engine.handlers.artifacts import register_artifact_manifest
from sidecar.coordinator.engine.handlers.objectives import create_objective, update_objective
from sidecar.coordinator.engine.handlers.retention import change_retention
from sidecar.coordinator.engine.handlers.runs import cancel_run, pause_run, resume_run
from sidecar.coordinator.engine.handlers.signals import ack_signal, suppress_signal
from sidecar.coordinator.wire.enums import Capability, CommandKind, Scope
from sidecar.coordinator.wire.errors import CapabilityRequired, ScopeDenied


class Command(NamedTuple):
    """One command kind."""

    capabilities: Capability
    scopes: Scope
    run: Callable[[Situation, Any], Change] | None
    """Makes the change of a decoded payload, or raises a scoped error."""


def check_allowed(kind: CommandKind, capabilities: int, scopes: int) -> Callable[[Situation, Any], Change]:
    """What runs a command of this kind, for a connection that may send it (P5-17, P6-10..16, W8-03)."""
    command = COMMANDS[kind]
    if command.run is None or command.capabilities & ~capabilities:
        raise CapabilityRequired(f"{kind.name} is not available without its capability")
    missing = command.scopes & ~scopes
    if missing:
        names = ",".join(bit.name or "" for bit in Scope if bit & missing)
        raise ScopeDenied(f"{kind.name} needs the scope {names}")
    return command.run


_NO_BITS = Capability(0)
_DELEGATE = Scope.WORK_READ | Scope.WORK_COMMAND | Scope.TERMINAL_CONTROL
_SIGNAL = Scope.WORK_READ | Scope.SIGNAL_ACK
COMMANDS: dict[CommandKind, Command] = {
    CommandKind.CREATE_OBJECTIVE: Command(_NO_BITS, Scope.WORK_COMMAND, create_objective),
    CommandKind.UPDATE_OBJECTIVE: Command(_NO_BITS, Scope.WORK_COMMAND, update_objective),
    CommandKind.START_RUN: Command(Capability.TERMINAL_BINDINGS, _DELEGATE, None),
    CommandKind.CANCEL_RUN: Command(_NO_BITS, Scope.WORK_COMMAND, cancel_run),
    CommandKind.PAUSE_RUN: Command(_NO_BITS, Scope.WORK_COMMAND, pause_run),
    CommandKind.RESUME_RUN: Command(_NO_BITS, Scope.WORK_COMMAND, resume_run),
    CommandKind.ACK_SIGNAL: Command(Capability.SIGNALS, _SIGNAL, ack_signal),
    CommandKind.SUPPRESS_SIGNAL: Command(Capability.SIGNALS, _SIGNAL, suppress_signal),
    CommandKind.REGISTER_ARTIFACT_MANIFEST: Command(
        Capability.ARTIFACT_MANIFESTS, Scope.WORK_COMMAND, register_artifact_manifest
    ),
    CommandKind.END_BINDING: Command(Capability.TERMINAL_BINDINGS, _DELEGATE, None),
    CommandKind.CHANGE_RETENTION: Command(Capability.ADMINISTRATION, Scope.ADMIN, change_retention),
}
"""CANCEL_RUN asks for more when the run has an active binding, see its handler."""
