"""The shell in one process: a real engine, store and socket; a witness and clocks that the test holds."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sidecar.base.clock import Now, system_now
from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.base.unixsocket import SocketFile
from sidecar.base.witnessing import Refusal, WitnessRefused, WitnessUnavailable
from sidecar.coordinator.authority.activation import Authority, activate
from sidecar.coordinator.authority.certificate import WitnessPin, sign_certificate
from sidecar.coordinator.authority.keyfile import init_authority_key
from sidecar.coordinator.authority.registry import RegistryWatcher, add_key
from sidecar.coordinator.authority.renewal import Renewer
from sidecar.coordinator.engine.core import Engine
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.machines.authority import AuthorityState
from sidecar.coordinator.server import SILENT_SECONDS, CoordinatorServer, Parts
from sidecar.coordinator.session import HandshakeEnv
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from tests.e2e.peer import Peer

WITNESS_KEY = SigningKey(Secret(b"\x61" * 32))
WORKLOAD_KEY = SigningKey(Secret(b"\x62" * 32))
WITNESS_ID = b"\xaa" * 16


class InProcessWitness:
    """Grants whatever it is asked, until it is told to refuse."""

    def __init__(self, clock: Callable[[], Now], life: int) -> None:
        self.clock, self.life = clock, life
        self.refusing: Exception | None = None
        self.relinquished: list[bytes] = []
        self.renewals = 0
        self.issued_at = 0

    def _grant(self, coordinator_id: bytes, epoch: int, incarnation: bytes) -> ActivationCertificate:
        self.issued_at = int(self.clock().wall)
        return sign_certificate(
            WITNESS_KEY,
            witness_id=WITNESS_ID,
            coordinator_id=coordinator_id,
            activation_sequence=1,
            epoch=epoch,
            incarnation=incarnation,
            token=b"\xdd" * 32,
            issued_at=self.issued_at,
            expires_at=self.issued_at + self.life,
        )

    def activate(self, coordinator_id: Any, epoch: Any, incarnation_id: Any) -> ActivationCertificate:
        return self._grant(coordinator_id, epoch, incarnation_id)

    def renew(self, certificate: ActivationCertificate) -> ActivationCertificate:
        self.renewals += 1
        if self.refusing is not None:
            raise self.refusing
        return self._grant(certificate.coordinator_id, certificate.authority_epoch, certificate.incarnation_id)

    def relinquish(self, coordinator_id: Any, activation_sequence: Any, token: bytes) -> None:
        self.relinquished.append(token)

    def last(self, coordinator_id: Any) -> tuple[int, int]:
        return 0, 0


class Rig:
    """One server, not yet serving."""

    def __init__(
        self, directory: Path, *, life: int = 60, max_sockets: int = 100, max_unauthenticated: int = 100
    ) -> None:
        self.skip = Now(0.0, 0.0)
        self.path = directory / "run" / "c.sock"
        state = directory / "state"
        key = init_authority_key(state, os.urandom)
        add_key(state, WORKLOAD_KEY.public_key, 0x3F, int(system_now().wall) + 10**6, now=system_now().wall)
        pin = WitnessPin(WITNESS_ID, WITNESS_KEY.public_key)
        self.witness = InProcessWitness(self.clock, life)
        self.store = SqliteStore.open(directory / "store", entropy=os.urandom)
        activation = activate(self.store, self.witness, entropy=os.urandom, clock=self.clock, pin=pin)
        self.activation = activation
        self.metrics = Metrics()
        self.log = io.StringIO()
        policy = Policy()
        self.engine = Engine(
            activation.authority,
            activation.recover(self.store.load),
            policy=policy,
            entropy=os.urandom,
            observer=self.metrics,
        )
        watcher = RegistryWatcher(state)
        env = HandshakeEnv(
            engine=self.engine,
            key=key,
            registry=lambda: self.server.registry,
            limits=policy.limits,
            capabilities=0,
            entropy=os.urandom,
            observer=self.metrics,
            crashed=lambda error: self.server.crashed(error),
        )
        self.server = CoordinatorServer(
            Parts(
                engine=self.engine,
                store=self.store,
                activation=activation,
                renewer=Renewer(activation.authority, pin),
                witness=self.witness,
                watcher=watcher,
                env=env,
                socket_file=SocketFile(self.path),
                metrics=self.metrics,
                log=Log(self.log),
                clock=self.clock,
                max_sockets=max_sockets,
                max_unauthenticated=max_unauthenticated,
            )
        )
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.listener = activation.bind(self.server.listen)

    def clock(self) -> Now:
        now = system_now()
        return Now(now.wall + self.skip.wall, now.mono + self.skip.mono)

    async def serving(self) -> asyncio.Task[str | None]:
        task = asyncio.create_task(self.server.serve(self.listener, self.ready.set, self.stop))
        await asyncio.wait_for(self.ready.wait(), 20)
        return task

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.getvalue().splitlines()]


def rigged(test: Callable[..., Any]) -> Callable[[Path], None]:
    """Run an async test(directory) on the product's loop."""

    def run(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(tmp_path), 60))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.req("P12-17")
@rigged
async def test_an_engine_that_fenced_itself_ends_the_server(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()
    rig.engine.fence("a counter is at its end")
    assert await task == "a counter is at its end"
    assert rig.witness.relinquished == []
    assert rig.activation.stage is AuthorityState.FENCED
    assert rig.events()[-1] == "authority_fenced"
    assert not rig.path.exists()
    rig.store.close()


@pytest.mark.req("P12-17", "P13-05")
@rigged
async def test_everybody_is_told_of_a_fence_in_the_handshake_too(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()
    silent, challenged, active = [Peer(rig.path) for _ in range(3)]
    await asyncio.to_thread(challenged.start)
    await asyncio.to_thread(active.login, WORKLOAD_KEY)
    await asyncio.to_thread(silent.send, fr.CoordPing(nonce=1))
    await asyncio.to_thread(silent.expect, fr.CoordPong)
    rig.engine.fence("a counter is at its end")
    for peer in (silent, challenged, active):
        assert await asyncio.to_thread(peer.refusal) == ErrorCode.AUTHORITY_FENCED
        peer.close()
    assert await task == "a counter is at its end"
    rig.store.close()


@pytest.mark.req("P12-13", "P12-15")
@rigged
async def test_a_renewal_is_everybody_s(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()
    held, renewed, renew = rig.engine.authority, asyncio.Event(), rig.engine.renew

    def noticed(authority: Authority) -> None:
        renew(authority)
        renewed.set()

    rig.engine.renew = noticed  # type: ignore[assignment,method-assign]
    rig.skip = Now(40.0, 40.0)
    await asyncio.wait_for(renewed.wait(), 20)
    assert rig.activation.authority is rig.engine.authority is not held
    assert rig.activation.authority.guard == held.guard
    rig.stop.set()
    assert await task is None
    assert rig.activation.stage is AuthorityState.STOPPED
    rig.store.close()


@pytest.mark.req("P12-17")
@rigged
async def test_a_refused_renewal_is_final(directory: Path) -> None:
    rig = Rig(directory, life=4)
    rig.witness.refusing = WitnessRefused(Refusal.NOT_CURRENT)
    task = await rig.serving()
    assert "not_current" in str(await task)
    assert rig.witness.renewals == 1
    rig.store.close()


@pytest.mark.req("P12-16", "P12-17")
@pytest.mark.parametrize("jump", [Now(3600.0, 0.0), Now(0.0, 3600.0)], ids=["wall clock", "monotonic clock"])
def test_a_clock_that_jumps_past_the_expiry_fences(tmp_path: Path, jump: Now) -> None:
    async def body(directory: Path) -> None:
        rig = Rig(directory)
        task = await rig.serving()
        rig.skip = jump
        assert "expired" in str(await task)
        rig.store.close()

    rigged(body)(tmp_path)


@pytest.mark.req("P12-16", "P12-17")
@rigged
async def test_a_wall_clock_that_jumps_back_does_not_lengthen_the_lease(directory: Path) -> None:
    rig = Rig(directory, life=3)
    task = await rig.serving()
    deadline = rig.engine.authority.deadline_mono
    rig.witness.refusing = WitnessUnavailable("gone")
    rig.skip = Now(-3600.0, 0.0)
    assert "expired" in str(await task)
    assert rig.clock().mono >= deadline
    rig.store.close()


@rigged
async def test_a_clean_stop_relinquishes_after_the_last_commit(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()
    rig.stop.set()
    assert await task is None
    assert rig.witness.relinquished == [b"\xdd" * 32]
    assert rig.server.unready()[-1].startswith("server: stopping")
    rig.store.close()


@rigged
async def test_the_limit_of_open_sockets_holds_for_all_of_them(directory: Path) -> None:
    rig = Rig(directory, max_sockets=3)
    task = await rig.serving()
    peers = [Peer(rig.path) for _ in range(3)]
    await asyncio.to_thread(peers[0].login, WORKLOAD_KEY)
    for peer in peers[1:]:
        await asyncio.to_thread(peer.ping)
    with Peer(rig.path) as late:
        assert await asyncio.to_thread(late.rest) == []
    assert rig.metrics.counter("sockets_refused", "limit")._value.get() == 1
    await asyncio.to_thread(peers[0].ping)
    rig.stop.set()
    assert await task is None
    for peer in peers:
        peer.close()
    rig.store.close()


@rigged
async def test_a_burst_of_connections_finds_room_in_the_backlog(directory: Path) -> None:
    rig = Rig(directory, max_sockets=1000, max_unauthenticated=1000)
    task = await rig.serving()
    burst = []
    for _ in range(400):  # nothing is accepted in between: the loop does not run
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        one.connect(str(rig.path))
        burst.append(one)
    rig.stop.set()
    assert await task is None
    for one in burst:
        one.close()
    rig.store.close()


@rigged
async def test_a_silent_loop_is_not_healthy(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()
    assert rig.server.unhealthy() == []
    assert rig.server.unready() == []
    rig.skip = Now(0.0, SILENT_SECONDS + 5)
    assert rig.server.unhealthy() == [f"event loop: silent for {SILENT_SECONDS + 5:.0f} s"]
    rig.skip = Now(0.0, 0.0)
    rig.stop.set()
    await task
    rig.store.close()


@rigged
async def test_a_tick_that_breaks_ends_the_server_instead_of_time(directory: Path) -> None:
    rig = Rig(directory)
    task = await rig.serving()

    def broken(now: Now) -> None:
        raise ValueError("canary")

    rig.engine.tick = broken  # type: ignore[method-assign]
    assert await task == "an internal failure stopped the clock"
    assert "internal_failure" in rig.events()
    assert "canary" not in rig.log.getvalue()
    rig.store.close()
