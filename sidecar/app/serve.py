"""`sidecar serve`: from a configuration to a running coordinator, and back.

The order is that of an activation (P12-20): material, store, witness, durable install, recovery; only then is anything
bound. Every failure on the way is one line, an exit code, and no socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import uvloop

from sidecar.app.config import ServeConfig
from sidecar.base.clock import system_now
from sidecar.base.ed25519 import InvalidKey, SigningKey, digest_text, fingerprint
from sidecar.base.keysource import load_seed_file
from sidecar.base.safefile import UnsafeFile
from sidecar.base.unixsocket import SocketFile
from sidecar.base.witnessing import WitnessError
from sidecar.coordinator.authority.activation import Activation, ActivationRefused, activate
from sidecar.coordinator.authority.certificate import CertificateInvalid, WitnessPin
from sidecar.coordinator.authority.keyfile import load_authority_key
from sidecar.coordinator.authority.registry import RegistryMalformed, RegistryWatcher
from sidecar.coordinator.authority.renewal import Renewer
from sidecar.coordinator.engine.core import Engine
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.server import CoordinatorServer, Parts
from sidecar.coordinator.session import HandshakeEnv
from sidecar.coordinator.store.errors import StoreError
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.wire.enums import Capability, FrameType
from sidecar.coordinator.wire.errors import MalformedMessage
from sidecar.coordinator.wire.ids import CounterWrap
from sidecar.ops.admin import AdminServer
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.health import HealthServer
from sidecar.ops.logging import Log, open_log
from sidecar.ops.metrics import Metrics
from sidecar.ops.signals import StopRequest, StopRequested, on_stop
from sidecar.witness.client import WitnessClient

CAPABILITIES = int(
    Capability.EVENT_REPLAY | Capability.ARTIFACT_MANIFESTS | Capability.SIGNALS | Capability.ADMINISTRATION
)
"""Capability bits that this server supports (P5-12)."""
_SPARE_DESCRIPTORS = 128
"""Descriptors for everything but sockets: store, logs, witness, registry, health."""


class CannotServe(Exception):  # noqa: N818 - the outcome, as a caller reads it
    """The coordinator did not start, or lost its authority; `exit_code` is what the process ends with."""

    def __init__(self, exit_code: ExitCode, problem: object) -> None:
        super().__init__(str(problem))
        self.exit_code = exit_code


def serve(config: ServeConfig) -> None:
    """Run the coordinator until SIGTERM or SIGINT; prints one JSON line on stdout once clients can connect.

    Returns after a clean stop, also of a start. Raises CannotServe for everything else. Runs in the main thread only.
    """
    try:
        log = open_log(config.log.level, config.log.format, config.log.file)
    except OSError as error:
        raise CannotServe(ExitCode.CONFIG, f"{config.log.file}: {error.strerror}") from None
    with contextlib.closing(log), StopRequest() as stop:
        try:
            with contextlib.suppress(StopRequested):
                _serve(config, log, stop)
        except CannotServe as error:
            # A start that fails is told once: on standard error the command's own line says it, for people.
            if config.log.file is not None or error.exit_code is ExitCode.FENCED:
                log.error("stopped", exit_code=int(error.exit_code), problem=str(error))
            raise
        except Exception as error:
            log.error("stopped", exit_code=int(ExitCode.INTERNAL), problem=error)
            raise
        log.info("stopped", exit_code=int(ExitCode.OK))


def _serve(config: ServeConfig, log: Log, stop: StopRequest) -> None:
    with _refusing(ExitCode.CONFIG, UnsafeFile, RegistryMalformed, InvalidKey, MalformedMessage, ValueError, OSError):
        key = load_authority_key(config.coordinator.state_dir)
        watcher = RegistryWatcher(config.coordinator.state_dir)
        pin = WitnessPin(config.witness.witness_id, config.witness.public_key)
        client_key = load_seed_file(config.witness.client_key_file)
        policy = config.policy()
    witness = WitnessClient(
        config.witness.socket, client_key, pin.witness_id, timeout=config.witness.timeout_milliseconds / 1000
    )
    config = _within_descriptors(config, log)
    with _refusing(ExitCode.STORE, StoreError):
        store = SqliteStore.open(config.coordinator.store_dir, entropy=os.urandom)
    with contextlib.closing(store):
        log.info("activating", witness=config.witness.socket, coordinator_id=store.coordinator_id.hex())
        with (
            _refusing(ExitCode.STORE, StoreError, CounterWrap),
            _refusing(ExitCode.UNAVAILABLE, WitnessError, ActivationRefused, CertificateInvalid),
        ):
            activation = _activate(config, store, witness, pin, stop)
        server, metrics = _assemble(config, log, key, watcher, pin, witness, store, activation, policy)
        health = HealthServer(
            config.metrics.listen.host,
            config.metrics.listen.port,
            metrics.registry,
            healthy=server.unhealthy,
            ready=server.unready,
        )

        admin_path = config.admin_socket
        admin = None if admin_path is None else AdminServer(admin_path, server.describe, metrics)

        def bind() -> socket.socket:
            health.start()
            if admin is not None:
                admin.start()
            return server.listen()

        try:
            with (
                _refusing(ExitCode.CANNOT_BIND, OSError),
                _refusing(ExitCode.UNAVAILABLE, ActivationRefused),
            ):
                listener = activation.bind(bind)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                fenced = runner.run(_run(server, listener, lambda: _announce(config, key, activation, health), stop))
        finally:
            if admin is not None:
                admin.stop()
            health.stop()
        if server.held_up:
            _end_beside_a_commit(log, _lost(fenced))
    if fenced is not None:
        raise _lost(fenced)


def _lost(fenced: str | None) -> CannotServe:
    return CannotServe(ExitCode.FENCED, f"the authority was lost: {fenced}; start again to activate anew")


def _end_beside_a_commit(log: Log, error: CannotServe) -> NoReturn:
    """End the process as it is: the thread of the writer is inside of the disk and can neither be ended nor waited for.

    The store is as after a kill, and its lock is held until the kernel lets go of the commit.
    """
    problem = f"{error}; the disk still has a commit, a successor waits for it"
    log.error("stopped", exit_code=int(error.exit_code), problem=problem)
    with contextlib.suppress(OSError):
        sys.stderr.write(f"sidecar: {problem}\n")
        sys.stderr.flush()
    os._exit(int(error.exit_code))


def _activate(
    config: ServeConfig, store: SqliteStore, witness: WitnessClient, pin: WitnessPin, stop: StopRequest
) -> Activation:
    """Activate. A stop ends it before the next step, and before the next request to the witness; a token that was
    granted at that moment goes back."""
    try:
        return activate(
            store,
            witness,
            entropy=os.urandom,
            clock=system_now,
            pin=pin,
            wait=config.witness.wait_seconds,
            sleep=stop.sleep,
            trace=lambda _step: stop.check(),
        )
    except WitnessError:
        stop.check()  # who wants to stop does not care for a witness that keeps silent
        raise


def _assemble(
    config: ServeConfig,
    log: Log,
    key: SigningKey,
    watcher: RegistryWatcher,
    pin: WitnessPin,
    witness: WitnessClient,
    store: SqliteStore,
    activation: Activation,
    policy: Policy,
) -> tuple[CoordinatorServer, Metrics]:
    metrics = Metrics(_frame_name)
    with _refusing(ExitCode.STORE, StoreError):
        state = activation.recover(store.load)
    engine = Engine(activation.authority, state, policy=policy, entropy=os.urandom, observer=metrics)
    env = HandshakeEnv(
        engine=engine,
        key=key,
        registry=lambda: server.registry,
        limits=policy.limits,
        capabilities=CAPABILITIES,
        entropy=os.urandom,
        observer=metrics,
        crashed=lambda error: server.crashed(error),
    )
    server = CoordinatorServer(
        Parts(
            engine=engine,
            store=store,
            activation=activation,
            renewer=Renewer(activation.authority, pin),
            witness=witness,
            watcher=watcher,
            env=env,
            socket_file=SocketFile(config.coordinator.socket),
            metrics=metrics,
            log=log,
            clock=system_now,
            max_sockets=config.coordinator.max_sockets,
            max_unauthenticated=config.coordinator.max_unauthenticated,
        )
    )
    return server, metrics


async def _run(
    server: CoordinatorServer, listener: socket.socket, announce: Callable[[], None], earlier: StopRequest
) -> str | None:
    stop = asyncio.Event()
    undo = on_stop(asyncio.get_running_loop(), lambda _number: stop.set())
    if earlier.requested:
        stop.set()
    try:
        return await server.serve(listener, announce, stop)
    finally:
        undo()


def _announce(config: ServeConfig, key: SigningKey, activation: Activation, health: HealthServer) -> None:
    line = {
        "ready": True,
        "pid": os.getpid(),
        "socket": str(config.coordinator.socket),
        "coordinator_id": activation.authority.coordinator_id.hex(),
        "authority_fingerprint": digest_text(fingerprint(key.public_key)),
        "epoch": activation.authority.epoch,
        "incarnation_id": activation.authority.incarnation_id.hex(),
        "admin_socket": None if config.admin_socket is None else str(config.admin_socket),
        "metrics_url": f"{health.url}/metrics",
        "health_url": f"{health.url}/healthz",
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _frame_name(number: int) -> str:
    return FrameType(number).name.lower() if number in FrameType._value2member_map_ else "other"


def _within_descriptors(config: ServeConfig, log: Log) -> ServeConfig:
    """Raise the limit of descriptors as far as needed. Where it cannot be raised there are fewer sockets, so that
    peers never take the descriptors that renewals and files need."""
    wanted = config.coordinator.max_sockets + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == wanted:
        return config
    sockets = max(1, allowed - _SPARE_DESCRIPTORS)
    waiting = min(config.coordinator.max_unauthenticated, max(1, sockets // 2))
    log.warning("few_descriptors", allowed=allowed, wanted=wanted, max_sockets=sockets, max_unauthenticated=waiting)
    return replace(config, coordinator=replace(config.coordinator, max_sockets=sockets, max_unauthenticated=waiting))


@contextlib.contextmanager
def _refusing(code: ExitCode, *kinds: type[BaseException]) -> Iterator[None]:
    """Turn these errors into CannotServe with the exit code."""
    try:
        yield
    except kinds as error:
        raise CannotServe(code, error) from error
