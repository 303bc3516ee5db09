"""One lane of the delivery process: the identity that it keeps on disk, its credentials, its connection and its plane.

Lanes share nothing but the process (CB-81, CB-82): each has its own keys, made by its own account, its own connection,
lease and state. What one of them fails at, it tries again alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sidecar.app.delivery_config import LaneConfig
from sidecar.app.delivery_feed import feed_loop
from sidecar.app.delivery_registration import registered, registered_late
from sidecar.app.endpoint_host import Hosted
from sidecar.app.spaces import SpaceFailed, space_info
from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir, read_private, write_private
from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Watch
from sidecar.rails.names import InvalidName, Lifecycle, Principal
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.planes.delivery.compose import compose, served
from sidecar.rails.planes.delivery.daemon import STABLE_SECONDS, DeliveryPlane, Lane, wait_after
from sidecar.rails.planes.delivery.floors import Floor, Floors
from sidecar.rails.planes.delivery.lease import Lease
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.trust import SpaceTrust, new_user

ACTOR: Final = "delivery"
_DIRECTORY: Final = "delivery"
_FILE: Final = "lane.json"
_MAX_FILE: Final = 4096
_LOCK_POLL_SECONDS: Final = 1.0
FLOOR_SECONDS: Final = 10.0
"""How often it is written down up to where the durables are settled; so much is done again after a crash, when
somebody deleted them too."""
LAST_LOOK_SECONDS: Final = 1.0
KEPT_LEASES: Final = 16
"""Starts in a row that may die before one holds the lease, for the next one not to wait for it."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """What a lane keeps: its lifecycle and endpoint instance for good, the epoch of its last registration, by which
    instances its last starts have asked for the lease, the newest last, and up to where its durables were settled. A
    start that died early did not take the lease from the one before."""

    uid: str
    instance: str
    epoch: int = 0
    leases: tuple[str, ...] = ()
    floors: Mapping[str, Floor] = field(default_factory=dict)

    def started(self, lease: str) -> LaneState:
        """The state of the next start."""
        return replace(self, leases=(*self.leases, lease)[-KEPT_LEASES:])

    @property
    def lease(self) -> str:
        """The instance of this start."""
        return self.leases[-1] if self.leases else ""

    @property
    def lifecycle(self) -> Lifecycle:
        """Whose the lane is on the wire."""
        return Lifecycle(Principal(LOCAL_OWNER, ACTOR), self.uid)


def read_state(directory: Path) -> LaneState:
    """The kept state, or a new one where there is none. Raises UnsafeFile."""
    path = directory / _FILE
    try:
        value = parse(read_private(path, _MAX_FILE), safe_integers=True)
    except FileNotFoundError:
        return LaneState(os.urandom(16).hex(), os.urandom(16).hex())
    except JsonError:
        value = None
    found = value if isinstance(value, dict) else {}
    uid, instance, epoch, leases = (found.get(name) for name in ("uid", "instance", "epoch", "leases"))
    try:
        GRAMMARS["uid"].check(uid)
        GRAMMARS["instance"].check(instance)
    except InvalidName:
        epoch = None
    known = isinstance(leases, list) and all(isinstance(lease, str) for lease in leases)
    if type(epoch) is not int or epoch < 0 or not known:
        raise UnsafeFile(path, "does not hold the state of a delivery lane; move it away to begin anew")
    return LaneState(str(uid), str(instance), epoch, tuple(map(str, leases or ())), _floors(found.get("floors")))


def _floors(value: JsonValue) -> dict[str, Floor]:
    """The kept floors. What is none is as if it had not been kept: the lane begins earlier."""
    found = {}
    for consumer, floor in value.items() if isinstance(value, dict) else ():
        created, sequence = (floor.get(name) for name in Floor._fields) if isinstance(floor, dict) else (None, None)
        if isinstance(created, str) and type(sequence) is int:
            found[consumer] = Floor(created, sequence)
    return found


def write_state(directory: Path, state: LaneState, lock: DirLock) -> None:
    """Keep the state; it is on disk when this returns. ``lock`` is that of the directory."""
    value = {
        "uid": state.uid,
        "instance": state.instance,
        "epoch": state.epoch,
        "leases": list(state.leases),
        "floors": {consumer: floor._asdict() for consumer, floor in state.floors.items()},
    }
    write_private(directory / _FILE, json.dumps(value).encode("ascii"), lock=lock)


class KeptFloors:
    """The floors of a lane on disk: as of the last seconds after a crash, and as of the end after a clean stop.

    ``lock`` is that of the directory, and is held for as long as this is used."""

    def __init__(self, state: LaneState, directory: Path, lock: DirLock) -> None:
        self.floors = Floors(state.floors)
        self._state, self._directory, self._lock = state, directory, lock

    async def keep(self, plane: Plane) -> None:
        """Look and write from time to time, for ever."""
        while True:
            await asyncio.sleep(FLOOR_SECONDS)
            await self.floors.look(plane)
            await self._write(plane)

    async def last(self, plane: Plane) -> None:
        """Look once more, as long as that takes a moment, and write."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOK_SECONDS if plane.connection.linked else 0):
                await self.floors.look(plane)
        await self._write(plane)

    async def _write(self, plane: Plane) -> None:
        state = replace(self._state, floors=dict(self.floors.known))
        if state == self._state:
            return
        # A disk that hangs holds up nobody else, and what has begun ends before another one writes.
        writing = asyncio.create_task(asyncio.to_thread(write_state, self._directory, state, self._lock))
        try:
            await asyncio.wait((writing,))
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            raise
        problem = writing.exception()
        plane.metrics.counter("delivery_floors", "kept" if problem is None else "failed").inc()
        if problem is None:
            self._state = state
        else:
            plane.log.error("delivery_floors_unkept", space=plane.space, problem=_told(problem))


class DeliveryLane:
    """One space. ``run`` serves it until cancelled and never gives up."""

    def __init__(self, config: LaneConfig, credential_seconds: int, metrics: Metrics, log: Log) -> None:
        self.config = config
        self.settled = asyncio.Event()
        """Set when it serves, or when it has seen that another instance does."""
        self.state: LaneState | None = None
        self.service: Service | None = None
        """As which instance it serves, and at which epoch."""
        self._late: Hosted | None = None
        self._seconds = credential_seconds
        self._metrics, self._log = metrics, log
        self._plane: DeliveryPlane | None = None
        self._problem = "it has not connected yet"

    @property
    def serving(self) -> bool:
        """Whether it holds the lease with all loops bound."""
        return self._plane is not None and self._plane.health.lane is Lane.SERVING

    def unready(self) -> list[str]:
        """Why it does not serve; empty when it does."""
        if self._plane is None:
            return [f"space {self.config.space}: {self._problem}"]
        return [f"space {self.config.space}: {one}" for one in self._plane.health.unready()]

    def ready_line(self) -> dict[str, Any]:
        """What the ready line of the process says of it."""
        state, service = self.state, self.service
        return {
            "space": self.config.space,
            "serving": self.serving,
            "lifecycle": None if state is None else state.lifecycle.dot,
            "instance": None if service is None else service.instance,
            "epoch": None if service is None else service.epoch,
        }

    async def run(self) -> None:
        """Serve, again after every end, with growing waits."""
        failures = 0
        while True:
            begun = time.monotonic()
            try:
                await self._once()
            except RegisteredLate as late:
                self._plane, self._late = None, late.hosted
                self._log.info("delivery_registered_late", space=self.config.space)
                continue
            except Exception as error:
                self._problem = _told(error)
            self._plane = None
            failures = 1 if time.monotonic() - begun > STABLE_SECONDS else failures + 1
            self._metrics.counter("delivery_restarts", "lane").inc()
            self._log.error("delivery_lane_ended", space=self.config.space, problem=self._problem)
            await asyncio.sleep(wait_after(failures))

    async def _once(self) -> None:
        """From the files to the end of the plane."""
        info = space_info(self.config.root, self.config.space)
        if self.config.form not in (None, info.form):
            raise SpaceFailed(f"the space is {info.form}, the configuration says {self.config.form}")
        space = self.config.root / "spaces" / info.name
        ensure_private_dir(space / _DIRECTORY)
        async with _only(space / _DIRECTORY) as lock:
            before = read_state(space / _DIRECTORY)
            # Whoever held this directory is dead: no lease of theirs need be waited for.
            self.state = state = before.started(os.urandom(16).hex())
            write_state(space / _DIRECTORY, state, lock)
            account = SpaceTrust.open(space, info.name, os.urandom)
            self._problem = "no connection to the broker yet"
            async with self._registered(state, info.form) as epoch:
                if epoch is None:
                    # Nobody may take the epochs of two counters for those of one instance: this one is new each time.
                    self.service = Service(os.urandom(16).hex(), 0, served(info.form))
                else:
                    self.service = Service(state.instance, epoch, served(info.form))
                    self.state = state = replace(state, epoch=epoch)
                    write_state(space / _DIRECTORY, state, lock)
                kept = KeptFloors(state, space / _DIRECTORY, lock)
                await self._serve(state, before.leases, account, info.form, kept, self.service, epoch is not None)

    @contextlib.asynccontextmanager
    async def _registered(self, state: LaneState, form: Form) -> AsyncIterator[int | None]:
        """The instance is registered for as long as this lasts; at which epoch, None when it could not be."""
        hosted, self._late = self._late, None
        if hosted is None:
            hosted = await registered(*self._who(state, form), self._metrics, self._log)
        with contextlib.ExitStack() as stack:
            if hosted is not None:
                stack.callback(hosted.close)
            yield None if hosted is None else hosted.identity.epoch

    def _who(self, state: LaneState, form: Form) -> tuple[Path, str, str, Form, str]:
        return self.config.root, self.config.space, self.config.url, form, state.instance

    async def _serve(
        self,
        state: LaneState,
        ended: tuple[str, ...],
        account: SpaceTrust,
        form: Form,
        kept: KeptFloors,
        service: Service,
        registered: bool,
    ) -> None:
        minter = _minter(account, form, state.lifecycle, service, self._seconds)
        watch = Watch(self._metrics, self._log)
        async with await Connection.open([self.config.url], minter, watch=watch) as connection:
            plane = Plane(
                connection, account.space, form, state.lifecycle, self._metrics, self._log, floors=kept.floors
            )
            lease = Lease(plane, state.lease, ended=ended)
            feed = feed_loop(
                self.config.root, self.config.url, account, form, state.uid, self._seconds, self._metrics, self._log
            )
            self._plane = compose(plane, lease, service, registered=registered, more=[feed])
            running = asyncio.create_task(self._plane.run())
            settling = asyncio.create_task(self._plane.settle())
            keeping = asyncio.create_task(kept.keep(plane))
            beside: list[asyncio.Task[Any]] = [settling, keeping]
            try:
                await asyncio.wait((running, settling), return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    self.settled.set()
                if not registered:
                    late = asyncio.create_task(registered_late(*self._who(state, form), self._metrics, self._log))
                    beside.append(late)
                    await asyncio.wait((running, late), return_when=asyncio.FIRST_COMPLETED)
                    if late.done():
                        raise RegisteredLate(late.result())
                await running
            finally:
                for task in (*beside, running):
                    task.cancel()
                await asyncio.wait((*beside, running))
                await kept.last(plane)


class RegisteredLate(Exception):  # noqa: N818 - what happened
    """A lane that serves without was registered: it begins anew, as the instance that it is now."""

    def __init__(self, hosted: Hosted) -> None:
        super().__init__("the instance is registered")
        self.hosted = hosted


@contextlib.asynccontextmanager
async def _only(directory: Path) -> AsyncIterator[DirLock]:
    """Hold the directory, which another process may do at the moment: then wait for it. The kernel gives it up with
    the process, so that its last holder is dead once it is ours."""
    lock = DirLock(directory, seconds=0)
    while True:
        try:
            lock.__enter__()
            break
        except UnsafeFile:
            await asyncio.sleep(_LOCK_POLL_SECONDS)
    try:
        yield lock
    finally:
        lock.__exit__(None, None, None)


def _minter(
    account: SpaceTrust, form: Form, lifecycle: Lifecycle, service: Service, seconds: int
) -> Callable[[], Awaitable[Credentials]]:
    """Credentials of one user key that never leaves the process, a new token each time (CB-92)."""
    key = new_user(os.urandom)
    holder = Holder(account.space, lifecycle, key.public, form, service=service)

    async def mint() -> Credentials:
        now = int(time.time())
        token = account.issue(Profile.DELIVERY, holder, key, now, seconds)
        return Credentials(format_creds(token, key), now + seconds)

    return mint


def _told(error: BaseException) -> str:
    """What an operator reads; no secret and no content."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_told, error.exceptions)))
    return told(error)
