"""Makes the streams and buckets of a space at a broker, and proves their shape (C8-01..C8-14, C8-69).

What is missing is made; what is there is compared and never changed. A run that died is finished by the next one. The
connection is the caller's, with the grants of the ``provisioner`` profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nats.aio.client import Client

from sidecar.rails.names import api, consumers, streams
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.space.asking import BrokerRefused as BrokerRefused
from sidecar.rails.space.asking import ask
from sidecar.rails.space.layout import Limits, configurations, drift, durable_drift, durables
from sidecar.rails.space.layout_control import WRITTEN

_NOT_FOUND: Final = 10059
_NO_CONSUMER: Final = 10014


class WrongShape(Exception):  # noqa: N818 - a state of the broker
    """Streams that are not what they must be; ``faults`` maps each name to its differences. Nothing was changed."""

    def __init__(self, faults: Mapping[str, list[str]]) -> None:
        self.faults = dict(faults)
        super().__init__("; ".join(f"{name}: {', '.join(found)}" for name, found in faults.items()))


async def provision(client: Client, space: str, limits: Limits | None = None, *, seconds: float = 10.0) -> list[str]:
    """The names of the streams that were made. ``limits`` are those of new streams only (C8-14).

    Raises WrongShape when any stream, made or found, differs; BrokerRefused; nats.errors.TimeoutError.
    """
    made = []
    faults = {}
    for name, wanted in configurations(space, limits or Limits()).items():
        found = await _info(client, name, seconds)
        if found is None:
            await ask(client, api.STREAM_CREATE.build(stream=name), wanted, seconds=seconds)
            made.append(name)
            found = await _info(client, name, seconds) or {}
        if differences := drift(space, name, found):
            faults[name] = differences
    if faults:
        raise WrongShape(faults)
    return made


async def activate(
    client: Client,
    space: str,
    lifecycle: Lifecycle,
    roles: tuple[str, ...] = (),
    *,
    known: int | None = None,
    seconds: float = 10.0,
) -> list[str]:
    """Make the durables of a lifecycle that begins now, and the queues of its roles; the names of those that were made.

    What is there stays, with the frontier that was taken first: an activation may be repeated after a crash. The DM
    frontier is read before anything is made (C8-30); ``known`` is that of an earlier activation of the lifecycle, so
    that a durable which somebody has deleted since begins where it began, and nothing that waited in it is lost.
    Raises WrongShape, BrokerRefused, nats.errors.TimeoutError.
    """
    frontier = known
    if frontier is None:
        dm = await ask(client, api.STREAM_INFO.build(stream=streams.DM.stream(space)), seconds=seconds)
        frontier = int(dm["state"]["last_seq"])
    made, faults = [], {}
    for name, wanted in durables(space, lifecycle, roles, frontier).items():
        stream, config = wanted["stream_name"], wanted["config"]
        found = await _durable_info(client, stream, name, seconds)
        if found is None:
            subject = api.CONSUMER_CREATE_FILTERED.build(stream=stream, consumer=name, filter=config["filter_subject"])
            await ask(client, subject, {**wanted, "action": "create"}, seconds=seconds)
            made.append(name)
            found = await _durable_info(client, stream, name, seconds) or {}
        if differences := durable_drift(config, found):
            faults[name] = differences
    if faults:
        raise WrongShape(faults)
    return made


async def dm_frontier(client: Client, space: str, lifecycle: Lifecycle, *, seconds: float = 10.0) -> int:
    """The activation frontier of a lifecycle that has its durables: the last message before it (C8-30)."""
    stream, name = streams.DM.stream(space), consumers.DM.build(**lifecycle.names)
    found = await _durable_info(client, stream, name, seconds)
    start = (found or {}).get("opt_start_seq")
    if type(start) is not int:
        raise WrongShape({name: ["it does not say where it starts"]})
    return start - 1


async def check_floors(client: Client, space: str, *, seconds: float = 10.0) -> None:
    """That what an endpoint writes is kept as long as its readers are told (C13.8-49): its events, record writes and
    timer requests, and its contracts. Raises WrongShape, BrokerRefused, nats.errors.TimeoutError.

    ``client`` may ask for the shape of these streams: the grants of ``registrar`` or ``provisioner``.
    """
    faults = {}
    for stream in WRITTEN:
        name = stream.stream(space)
        found = await _info(client, name, seconds)
        differences = ["it is missing; run: sidecar space create"] if found is None else drift(space, name, found)
        if differences:
            faults[name] = differences
    if faults:
        raise WrongShape(faults)


async def shape(client: Client, space: str, *, seconds: float = 10.0) -> dict[str, list[str] | None]:
    """Each stream of a space with its differences; None for one that is not there."""
    answer: dict[str, list[str] | None] = {}
    for name in configurations(space, Limits()):
        found = await _info(client, name, seconds)
        answer[name] = None if found is None else drift(space, name, found)
    return answer


async def _info(client: Client, name: str, seconds: float) -> dict[str, Any] | None:
    """The configuration of a stream; None when there is none of that name."""
    return await _config(client, api.STREAM_INFO.build(stream=name), _NOT_FOUND, seconds)


async def _durable_info(client: Client, stream: str, name: str, seconds: float) -> dict[str, Any] | None:
    subject = api.CONSUMER_INFO.build(stream=stream, consumer=name)
    return await _config(client, subject, _NO_CONSUMER, seconds)


async def _config(client: Client, subject: str, absent: int, seconds: float) -> dict[str, Any] | None:
    try:
        answer = await ask(client, subject, seconds=seconds)
    except BrokerRefused as error:
        if error.code == absent:
            return None
        raise
    config = answer.get("config")
    return config if isinstance(config, dict) else {}
