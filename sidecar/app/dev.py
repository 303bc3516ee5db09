"""``sidecar dev``: everything on loopback, in one directory, under one process: nats-server, witness, coordinator,
delivery, registry, and endpoints of our own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sidecar.app.broker import Broker, prepare_broker
from sidecar.app.dev_endpoints import SAMPLES, Endpoints, endpoints_told
from sidecar.app.dev_spaces import SPACES, keep_creds, make_spaces, spaces_stand, write_delivery_config
from sidecar.app.layout import Layout, find_nats_server
from sidecar.app.provision import Provisioned, keep_metrics_address, provision
from sidecar.app.supervisor import Child, ChildFailed, Supervisor
from sidecar.base.safefile import DirLock, UnsafeFile, write_private
from sidecar.ops.signals import on_stop

SPACE = next(iter(SPACES))
_SILENT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What the command line chose; ports 0 take free ones."""

    directory: Path
    nats_server: Path | None = None
    nats_port: int = 0
    certificate_seconds: int = 10
    endpoints: bool = True


@dataclass(slots=True)
class Dev:
    """The running set. ``ready`` is the ready line as a value; it is refreshed, and then ``restarted`` is set, when the
    coordinator was started again."""

    layout: Layout
    provisioned: Provisioned
    broker: Broker
    serve: Child
    nats: Child
    ready: dict[str, Any] = field(default_factory=dict)
    spaces: dict[str, Any] = field(default_factory=dict)
    delivery: dict[str, Any] = field(default_factory=dict)
    endpoints: Endpoints | None = None
    restarted: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to start."""

    layout: Layout
    provisioned: Provisioned
    options: DevOptions


Body = Callable[[Dev], Awaitable[None]]


def run_dev(options: DevOptions, *, body: Body | None = None, announce: bool = True) -> None:
    """Runs everything until SIGTERM or SIGINT, or until ``body`` returns.

    With ``announce`` exactly one JSON line goes to stdout when everything serves. Raises ChildFailed, UnsafeFile,
    OSError; what was started is stopped in every case.
    """
    layout = Layout(options.directory.absolute())
    layout.create()
    with _only_run(layout):
        provisioned = provision(layout, certificate_seconds=options.certificate_seconds)
        asyncio.run(_run(_Plan(layout, provisioned, options), body, announce))


@contextlib.contextmanager
def _only_run(layout: Layout) -> Iterator[None]:
    lock = DirLock(layout.lock, seconds=0)
    try:
        lock.__enter__()
    except UnsafeFile:
        raise ChildFailed(f"another `sidecar dev` runs in {layout.root}; stop it or choose another --dir") from None
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


async def _run(plan: _Plan, body: Body | None, announce: bool) -> None:
    stop = asyncio.Event()
    undo = on_stop(asyncio.get_running_loop(), lambda _: stop.set())
    supervisor = Supervisor(_notice)
    renewing: asyncio.Task[None] | None = None
    try:
        starting = asyncio.create_task(_start(plan, supervisor, announce))
        if not await _unless(stop, starting):
            return
        dev = starting.result()
        renewing = asyncio.create_task(keep_creds(dev.layout.nats, dev.spaces, _notice))
        if body is None:
            await stop.wait()
            return
        working = asyncio.ensure_future(body(dev))
        if await _unless(stop, working):
            working.result()
    finally:
        if renewing is not None:
            renewing.cancel()
        await supervisor.stop()
        plan.layout.ready_file.unlink(missing_ok=True)
        undo()


async def _unless(stop: asyncio.Event, work: asyncio.Future[Any]) -> bool:
    """Waits for ``work``; False when a stop came first, after ``work`` was cancelled."""
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({waiting, work}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        return True
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return False


async def _start(plan: _Plan, supervisor: Supervisor, announce: bool) -> Dev:
    layout, provisioned, options = plan.layout, plan.provisioned, plan.options
    broker = prepare_broker(layout.nats, port=options.nats_port)
    nats = Child(
        "nats-server",
        [str(find_nats_server(options.nats_server)), "--config", str(broker.config)],
        layout.log / "nats-server.log",
        ready_line=False,
        probe=broker.answers,
    )
    sidecar = [sys.executable, "-m", "sidecar"]
    witness = Child(
        "witness",
        [*sidecar, "witness", "serve", "--config", str(provisioned.witness_config)],
        layout.log / "witness.log",
    )
    serve = Child(
        "coordinator",
        [*sidecar, "serve", "--config", str(provisioned.serve_config)],
        layout.log / "serve.log",
    )
    dev = Dev(layout, provisioned, broker, serve, nats)

    def broker_back(_: Child) -> None:  # it has another pid now
        if dev.ready:
            _publish(dev)

    await asyncio.gather(supervisor.start(nats, broker_back), supervisor.start(witness))
    kept = False

    def refresh(child: Child) -> None:
        nonlocal kept
        waiting.cancel()
        if not kept:  # what the ready line says stays true when the coordinator is started again
            keep_metrics_address(provisioned.serve_config, urlsplit(child.ready["metrics_url"]).netloc)
            kept = True
        if dev.ready:
            _publish(dev)
            dev.restarted.set()

    waiting = asyncio.get_running_loop().call_later(
        _SILENT_SECONDS,
        _notice,
        "the coordinator is still starting; after a run that was killed, the certificate of that run has to end first "
        f"(see {serve.log})",
    )
    try:
        await asyncio.gather(supervisor.start(serve, refresh), _start_spaces(dev, supervisor, options.endpoints))
    finally:
        waiting.cancel()
    _publish(dev)
    if announce:
        sys.stdout.write(json.dumps(dev.ready) + "\n")
        sys.stdout.flush()
    return dev


async def _start_spaces(dev: Dev, supervisor: Supervisor, endpoints: bool) -> None:
    """The spaces, the processes that deliver and register in them, and the endpoints of our own."""
    root, config = dev.layout.nats, dev.layout.conf / "delivery.json"
    write_delivery_config(config, root, dev.broker.url)
    delivery = Child(
        "delivery",
        [sys.executable, "-m", "sidecar", "delivery", "--config", str(config)],
        dev.layout.log / "delivery.log",
    )

    def refresh(child: Child) -> None:
        dev.delivery = child.ready
        refreshed()

    def refreshed() -> None:
        if dev.ready:
            _publish(dev)

    async def make() -> None:
        dev.spaces = await make_spaces(root, dev.broker.url)

    async def serve() -> None:
        if not endpoints:
            await supervisor.start(delivery, refresh)
            return
        made = Endpoints.prepare(dev.layout, dev.broker.url)
        made.own(dev.provisioned)
        await asyncio.gather(
            supervisor.start(delivery, refresh),
            made.start(("registry", "bridge", *SAMPLES), supervisor, refreshed),
        )
        dev.endpoints = made

    if spaces_stand(root):
        await asyncio.gather(make(), serve())
    else:
        await make()
        await serve()


def _publish(dev: Dev) -> None:
    """Say what is ready now, for other commands."""
    dev.ready = ready_line(dev, dev.serve.ready)
    write_private(dev.layout.ready_file, json.dumps(dev.ready).encode())


def ready_line(dev: Dev, serve: dict[str, Any]) -> dict[str, Any]:
    """The ready line: where everything is and with which keys. It names key files and holds no secret."""
    return {
        "ready": True,
        "pid": os.getpid(),
        "coordinator": {
            "socket": serve["socket"],
            "admin_socket": serve["admin_socket"],
            "coordinator_id": serve["coordinator_id"],
            "authority_fingerprint": serve["authority_fingerprint"],
            "witness_id": dev.provisioned.witness_id.hex(),
            "witness_public_key": dev.provisioned.witness_public_key.hex(),
            "pid": serve["pid"],
            "epoch": serve["epoch"],
            "incarnation_id": serve["incarnation_id"],
        },
        "workloads": dev.provisioned.workloads,
        # The terminal owner is not there yet.
        "owner": None,
        "nats": _nats(dev),
        "delivery": dev.delivery,
        "metrics_url": serve["metrics_url"],
        "health_url": serve["health_url"],
    }


def _nats(dev: Dev) -> dict[str, Any]:
    """Where the broker is and who may enter; ``creds`` and ``principals`` are those of the first space."""
    assert dev.nats.process is not None
    first = dev.spaces[SPACE]
    return {
        "url": dev.broker.url,
        "space": SPACE,
        "server_pid": dev.nats.process.pid,
        "root": str(dev.layout.nats),
        "creds": first["creds"],
        "principals": first["principals"],
        "endpoints": endpoints_told(dev.endpoints, dev.delivery),
        "spaces": dev.spaces,
    }


def _notice(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, or the disk is full: the set goes on
        sys.stderr.write(f"sidecar dev: {text}\n")
        sys.stderr.flush()


__all__ = ["ChildFailed", "Dev", "DevOptions", "UnsafeFile", "ready_line", "run_dev"]
