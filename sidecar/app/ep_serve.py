"""``sidecar ep serve``: one instance of somebody's endpoint in a process, until it is stopped or superseded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Final

import uvloop

from sidecar.app.domains import claims, longest
from sidecar.app.endpoint_host import Hosted
from sidecar.app.instance import Instance, InstanceEnded
from sidecar.app.json_config import Where
from sidecar.app.space_links import SpaceFailed
from sidecar.base.clock import system_now
from sidecar.base.safefile import UnsafeFile, read_secret
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.logging import open_log, told
from sidecar.ops.metrics import Metrics
from sidecar.ops.signals import on_stop
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.identity import Identity, identity_of
from sidecar.rails.messaging.credsfile import CredsFile
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.planes.registration.faults import RegistrationRefused
from sidecar.rails.planes.registration.register import Registered
from sidecar.rails.space.creds import MAX_CREDS_BYTES

ANNOUNCED: Final = ("endpoint", "space", "instance_id", "epoch")


class CannotServe(Exception):  # noqa: N818 - the outcome, as a caller reads it
    """The instance was not registered, or its incarnation has ended; `exit_code` is what the process ends with."""

    def __init__(self, exit_code: int, problem: object) -> None:
        super().__init__(str(problem))
        self.exit_code = exit_code


class CredsInstance(Instance):
    """An instance that was registered elsewhere: its creds file says which one, at which epoch. A file that is replaced
    by a later registration is read by the next process, not by this one."""

    def __init__(self, endpoint: Endpoint, creds: Path, url: str, identity: Identity, **more: object) -> None:
        where = Where(Path(), identity.space, url)
        super().__init__(where, endpoint, identity.owner, instance=identity.instance, **more)  # type: ignore[arg-type]
        self._creds, self._held = creds, identity

    async def _registered(self) -> Hosted:
        registered = Registered(self._held.instance, self._held.epoch, 0, 0)
        return Hosted(self._held, registered, CredsFile(self._creds, system_now), contextlib.ExitStack())


def identity_in(creds: Path, endpoint: Endpoint) -> Identity:
    """The incarnation that a creds file lets serve. Raises CannotServe for another endpoint's, UnsafeFile,
    InvalidCreds."""
    try:
        identity = identity_of(read_secret(creds, MAX_CREDS_BYTES))
    except OSError as error:
        raise UnsafeFile(creds, f"cannot be read: {error.strerror}") from None
    if identity.endpoint != endpoint.name:
        raise CannotServe(ExitCode.USAGE, f"{creds} serves {identity.endpoint}, not {endpoint.name}")
    return identity


def owner_of(root: Path, space: str, endpoint: str) -> str:
    """Who registers an endpoint: the operator for a name of one label, else whoever has claimed its domain. Raises
    SpaceFailed when nobody has."""
    if "." not in endpoint:
        return LOCAL_OWNER
    claim = longest({one.domain: one for one in claims(root, space)}, endpoint)
    if claim is None:
        domain = endpoint.rpartition(".")[0] if endpoint.count(".") > 1 else endpoint
        raise SpaceFailed(
            f"no claim covers {endpoint}; make one with: sidecar ep domain claim {domain} --owner OWNER --space {space}"
        )
    return claim.owner


def serve_registered(where: Where, endpoint: Endpoint, owner: str, instance: str | None, *, level: str) -> None:
    """Register an instance and serve it. Raises CannotServe; runs in the main thread only."""
    with contextlib.closing(open_log(level, "text", None)) as log:
        _run(Instance(where, endpoint, owner, instance=instance, metrics=Metrics(), log=log))


def serve_creds(endpoint: Endpoint, creds: Path, url: str, *, level: str) -> None:
    """Serve the incarnation that a creds file names. Raises CannotServe, UnsafeFile, InvalidCreds; runs in the main
    thread only."""
    identity = identity_in(creds, endpoint)
    with contextlib.closing(open_log(level, "text", None)) as log:
        _run(CredsInstance(endpoint, creds, url, identity, metrics=Metrics(), log=log))


def _run(instance: Instance) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(instance))


async def _serve(instance: Instance) -> None:
    stop = asyncio.Event()
    undo = on_stop(asyncio.get_running_loop(), lambda _: stop.set())
    running = asyncio.create_task(instance.run())
    beside = [asyncio.create_task(stop.wait()), asyncio.create_task(_announce(instance))]
    try:
        await asyncio.wait((beside[0], running), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*beside, running):
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.wait((running,))  # it drains what it has begun
        undo()
    error = None if running.cancelled() else running.exception()
    if isinstance(error, InstanceEnded):
        raise CannotServe(ExitCode.FENCED, f"superseded: {error}; another process serves the instance, or it is ended")
    if isinstance(error, RegistrationRefused):
        raise CannotServe(ExitCode.INTERNAL, f"not registered: {told(error)}")
    if error is not None:
        raise error


async def _announce(instance: Instance) -> None:
    """The ready line, once it serves."""
    await instance.settled.wait()
    line = instance.ready_line()
    ready = {"ready": True, **{name: line[name] for name in ANNOUNCED}, "pid": os.getpid()}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
