"""What the commands of ``sidecar coordinator`` that change something share: ids, the outcome, the exit code."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from sidecar.cli import coordinator_show as show
from sidecar.cli.coordinator_target import Exit, Target
from sidecar.coordinator.client import Outcome
from sidecar.coordinator.wire.enums import OperationTag
from sidecar.coordinator.wire.ids import OperationId, fresh_id, operation_id
from sidecar.coordinator.wire.records import Indeterminate, OperationResult, Rejected, Tombstoned, Unknown


def operation_of(given: bytes | None) -> OperationId:
    """The operation id of a command line, or a minted one."""
    return fresh_id(operation_id, os.urandom) if given is None else OperationId(given)


def ids_of(kind: str, chosen: bytes | None, operation: OperationId) -> dict[str, str]:
    """What a command touches, for JSON: ``KIND_id`` unless there is no object of its own, and the operation."""
    named = {} if chosen is None else {f"{kind}_id": chosen.hex()}
    return {**named, "operation_id": operation.hex()}


def show_outcome(target: Target, kind: str, chosen: bytes | None, outcome: Outcome) -> int:
    """Print the outcome; the exit code."""
    ids = ids_of(kind, chosen, outcome.operation_id)
    if target.as_json:
        print_json({**ids, "result": show.result_of(outcome.result), "recovered": outcome.recovered})
    else:
        recovered = "  (the reply was lost; recovered by the operation id)" if outcome.recovered else ""
        rows = [(name.removesuffix("_id"), value) for name, value in ids.items()]
        for name, value in [*rows, ("result", f"{show.result_line(outcome.result)}{recovered}")]:
            click.echo(f"{name:<9}  {value}")
    return code_of(outcome.result)


def code_of(result: OperationResult) -> Exit:
    """The exit code of a result."""
    if isinstance(result, Tombstoned):
        final = {OperationTag.REJECTED: Exit.REFUSED, OperationTag.INDETERMINATE: Exit.UNKNOWN}
        return final.get(result.final_state, Exit.OK)
    if isinstance(result, Rejected):
        return Exit.REFUSED
    return Exit.UNKNOWN if isinstance(result, Indeterminate | Unknown) else Exit.OK


def print_json(document: dict[str, Any]) -> None:
    """One document on one line."""
    click.echo(json.dumps(document))


def leave(code: int) -> None:
    """End the command with this code."""
    click.get_current_context().exit(code)
