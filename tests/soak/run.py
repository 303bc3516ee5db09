"""One soak from its start to its verdict."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from sidecar.base.ed25519 import SigningKey, digest_text, fingerprint
from sidecar.base.safefile import write_private
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.grants import KeyRecord, format_registry
from sidecar.coordinator.authority.registry import REGISTRY_NAME, add_key, load_registry
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode
from sidecar.coordinator.wire.ids import OperationId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.ops.admin import fetch
from tests.e2e.cluster import Cluster, eventually
from tests.soak.memory import Sample, check_caps, check_growth, held
from tests.soak.talk import Talk
from tests.soak.truth import Edit, Failed, Truth, rng_of
from tests.soak.visitor import Visitor, Who, login

PRINCIPALS = (
    ("all", 0x3F, 0x1D),
    ("worker", 0x03, 0x01),
    ("reader", 0x01, 0x1F),
    ("commander", 0x02, 0x00),
    ("signaller", 0x13, 0x1D),
    ("auditor", 0x2A, 0x1D),
    ("artist", 0x0B, 0x05),
    ("keeper", 0x20, 0x10),
)
"""Name, scopes and offered capabilities."""
EVENT_BYTES = 131_072
"""Of the retained log, so that it is full early."""
WEEK = 7 * 86_400


class Soak:
    """A server, its clients, its registrar and its auditor."""

    def __init__(self, cluster: Cluster, *, seconds: float, clients: int, seed: int) -> None:
        operations = int(min(3_000, 20 * seconds))
        self.truth = Truth(seed, seconds, operations)
        self.cluster = cluster
        self.rng = rng_of(seed, 1)
        self.path = str(cluster.socket)
        self.people = [self._enrol(name, scopes, bits) for name, scopes, bits in PRINCIPALS]
        admin = cluster.key("admin")
        self.recorder = Who("recorder", admin, fingerprint(admin.public_key), 0x3F, 0x1D)
        self.visitors = [
            Visitor(
                self.truth,
                self.path,
                self.people[number % len(self.people)],
                number + 1,
                rng_of(seed, 100 + number),
                SigningKey(Secret(rng_of(seed, 2).randbytes(32))),
                passing=number % 6 == 5,
            )
            for number in range(clients)
        ]
        self.samples: list[Sample] = []

    def _enrol(self, name: str, scopes: int, capabilities: int) -> Who:
        key = SigningKey(Secret(self.rng.randbytes(32)))
        now = time.time()
        add_key(self.cluster.state_dir, key.public_key, scopes, int(now) + WEEK, now=now)
        return Who(name, key, fingerprint(key.public_key), scopes, capabilities)

    # ---- the whole ----

    async def run(self) -> dict[str, Any]:
        """Run for as long as it was told, then see that nothing is left. Raises Failed."""
        serve = self.cluster.serve
        assert serve is not None
        keys = len(load_registry(self.cluster.state_dir).records)
        await asyncio.to_thread(eventually, lambda: self.cluster.metrics()["sidecar_registry_keys"] == keys)
        await asyncio.to_thread(self._stats)
        descriptors = serve.descriptors()
        truth = self.truth
        recording = asyncio.create_task(self._guard(self._record(), "recorder"))
        await asyncio.wait([asyncio.create_task(truth.started.wait()), recording], return_when="FIRST_COMPLETED")
        others = [
            asyncio.create_task(self._guard(self._audit(), "auditor")),
            asyncio.create_task(self._guard(self._edit_registry(), "registrar")),
            *(asyncio.create_task(visitor.live()) for visitor in self.visitors),
        ]
        try:
            await asyncio.wait_for(truth.over.wait(), truth.seconds)
        except TimeoutError:
            truth.over.set()
        await asyncio.wait([recording, *others], timeout=120)
        if truth.failure is None:
            truth.verify(everything=True)
        if truth.failure is not None:
            raise truth.failure
        await self._given_back(descriptors)
        return self._verdict()

    async def _given_back(self, descriptors: int) -> None:
        """Nobody is there any more: every counter goes to zero, every socket is closed (P3-50)."""
        serve = self.cluster.serve
        assert serve is not None
        try:
            await asyncio.to_thread(eventually, lambda: not held(self._stats()))
            await asyncio.to_thread(eventually, lambda: serve.descriptors() <= descriptors)
        except AssertionError:
            still = held(await asyncio.to_thread(self._stats))
            text = f"seed {self.truth.seed}: {serve.descriptors() - descriptors} descriptors and {still} are still held"
            raise Failed(text) from None

    def _verdict(self) -> dict[str, Any]:
        serve, truth = self.cluster.serve, self.truth
        assert serve is not None
        if not serve.running or self.cluster.health("/healthz")[0] != 200:
            raise Failed("the server does not live any more")
        if "internal_failure" in serve.stderr:
            raise Failed("the log of the server tells of an internal failure")
        try:
            grown = check_growth(self.samples)
        except Failed as error:
            raise Failed(f"seed {truth.seed}: {error}") from None
        return {
            "seed": truth.seed,
            "seconds": round(truth.elapsed, 1),
            "connections": truth.lives,
            "operations": len(truth.results),
            "events": truth.recorded,
            "deliveries_verified": truth.verified,
            "rss": self.samples[-1].rss,
            **grown,
            "seen": dict(sorted(truth.seen.items())),
        }

    async def _guard(self, work: Any, name: str) -> None:
        try:
            await work
        except Exception as error:
            self.truth.fail(error, name)

    def _stats(self) -> dict[str, Any]:
        return fetch(Path(self.cluster.ready["admin_socket"]), patience=20)

    # ---- the recorder ----

    async def _record(self) -> None:
        """Somebody who sees everything and never falls behind, so that every event has a witness."""
        rng = rng_of(self.truth.seed, 3)
        while not self.truth.over.is_set():
            talk = await login(self.truth, self.path, self.recorder, rng, "recorder", {})
            if talk is None:
                await asyncio.sleep(0.2)
                continue
            talk.recorder = True
            await self._follow(talk)
            if not talk.ended.is_set():
                await talk.leave()

    async def _follow(self, talk: Talk) -> None:
        truth = self.truth
        if not truth.recorded:
            await asyncio.wait([self._subscribe(talk, 0)])
            await asyncio.wait([self._bound_log(talk)])
            truth.started.set()
        else:
            await asyncio.wait([self._subscribe(talk, truth.recorded)])
        while not talk.ended.is_set() and not truth.over.is_set():
            for id_, stream in list(talk.streams.items()):
                if stream.paused:
                    # It was away for longer than events are retained.
                    cut = int((await self._cut(talk)).base_event_sequence)
                    truth.holes.append(range(truth.recorded + 1, cut + 1))
                    truth.recorded = cut
                    del talk.streams[id_]
                    await asyncio.wait([self._subscribe(talk, cut)])
                elif stream.count < 2_000:
                    stream.give(2_000, 2_000_000)
                    talk.link.send(fr.CreditFrame(subscription_id=id_, add_count=2_000, add_bytes=2_000_000))  # type: ignore[arg-type]
            await asyncio.sleep(0.05)

    def _subscribe(self, talk: Talk, after: int) -> asyncio.Future[fr.Frame]:
        values: dict[str, Any] = {"after_event_sequence": after, "initial_credit_count": 2_000}
        return talk.ask(
            fr.Subscribe(
                request_id=next(talk.requests), authority_guard=talk.guard, initial_credit_bytes=2_000_000, **values
            )
        )

    async def _cut(self, talk: Talk) -> fr.SnapshotBegin:
        asked = talk.ask(
            fr.OpenSnapshot(
                request_id=next(talk.requests), authority_guard=talk.guard, selector=0, reserve_subscription=False
            )
        )
        begin = await asked
        assert isinstance(begin, fr.SnapshotBegin)
        talk.readings.pop(begin.snapshot_id)
        return begin

    def _bound_log(self, talk: Talk) -> asyncio.Future[fr.Frame]:
        """Let few events be retained: gaps are to be had, and memory is full early."""
        payload = pl.ChangeRetention(
            operation_result_secs=RETENTION_FLOOR, event_bytes=EVENT_BYTES, artifact_bytes=1 << 24
        )
        command = fr.CoordCommand(
            request_id=next(talk.requests),
            authority_guard=talk.guard,
            operation_id=OperationId(random.Random(self.truth.seed).randbytes(16)),
            command_kind=int(CommandKind.CHANGE_RETENTION),
            payload=payload.body(),
        )
        return talk.ask(command, (ErrorCode.REVISION_CONFLICT,))

    # ---- the auditor ----

    async def _audit(self) -> None:
        """Once a second: caps, memory, health, and what the clients claim."""
        truth, serve = self.truth, self.cluster.serve
        assert serve is not None
        while not truth.over.is_set():
            check_caps(await asyncio.to_thread(self._stats))
            status, text = await asyncio.to_thread(self.cluster.health, "/healthz")
            if status != 200:
                raise Failed(f"the server is not healthy: {text}")
            self.samples.append(Sample(truth.elapsed, truth.lives, truth.made, serve.rss()))
            truth.verify()
            await asyncio.sleep(1.0)

    # ---- the registrar ----

    async def _edit_registry(self) -> None:
        """Revoke, narrow, break and restore, one after the other."""
        truth, rng = self.truth, rng_of(self.truth.seed, 4)
        records = load_registry(self.cluster.state_dir).records
        while not truth.over.is_set():
            await asyncio.sleep(2 + rng.random() * 4)
            victim = rng.choice(self.people)
            way = rng.choice(("revoke", "revoke", "narrow", "break"))
            everybody = frozenset(record.key_id for record in records)
            edit = truth.edit(everybody if way == "break" else frozenset({victim.key_id}))
            truth.seen[f"registry {way}"] += 1
            await self._write(self._edited(way, records, victim))
            await self._dismissed(edit)
            await self._write(format_registry(records))
            edit.end = time.monotonic()

    def _edited(self, way: str, records: tuple[KeyRecord, ...], victim: Who) -> bytes:
        if way == "break":
            return b"{"
        kept = [record for record in records if record.key_id != victim.key_id]
        if way == "narrow":
            # A ceiling that no grant is within.
            kept.append(KeyRecord.of(victim.key.public_key, 0, int(time.time()) + WEEK))
        return format_registry(kept)

    async def _write(self, document: bytes) -> None:
        """Replace the registry at once and wait until the server has taken notice."""

        def loads() -> float:
            seen = self.cluster.metrics()
            return sum(seen.get(f'sidecar_registry_reloads_total{{outcome="{one}"}}', 0) for one in ("ok", "malformed"))

        before = await asyncio.to_thread(loads)
        write_private(self.cluster.state_dir / REGISTRY_NAME, document)
        await asyncio.to_thread(eventually, lambda: loads() > before)

    async def _dismissed(self, edit: Edit) -> None:
        """Whoever lost its grant is not served any more (W8-06..W8-08)."""
        lost = {digest_text(key) for key in edit.keys}

        def still() -> list[str]:
            stats = self._stats()
            return [one["key_id"] for one in stats["connections"] if one["closing"] is None and one["key_id"] in lost]

        # An answer of the admin socket may be a moment old.
        await asyncio.to_thread(eventually, lambda: not still())
