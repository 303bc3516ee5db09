"""Whom a credential is for: the values that fill the rows of the ownership matrix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.rails.names.buckets import member_channel
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.grants import covers
from sidecar.rails.names.principals import (
    TAG_ENDPOINT,
    TAG_EPOCH,
    TAG_FORM,
    TAG_INSTANCE,
    TAG_LIFECYCLE,
    TAG_ROLE,
    TAG_SPACE,
    Lifecycle,
    check_mintable,
)
from sidecar.rails.names.tokens import GRAMMARS, MODES, WILDCARD, endpoint_token, policy_channel


class Profile(StrEnum):
    """A closed set of grants (C9-13); none of them means "everything"."""

    AGENT = "agent"
    OBSERVER = "observer"
    ADMIN = "admin"
    DELIVERY = "delivery"
    PROVISIONER = "provisioner"
    DEPROVISIONER = "deprovisioner"
    MEMBERSHIP_RW = "membership-rw"
    OPERATOR = "operator"
    CHANNEL_WRITER = "channel-writer"
    PURGER = "purger"
    LIMITER = "limiter"
    PROBE = "probe"
    DM_READER = "dm-reader"
    ENDPOINT = "endpoint"
    REGISTRY = "registry"
    RECORD_WRITER = "record-writer"
    PUBLISHER = "contract-publisher"
    REGISTRAR = "registrar"
    ISSUER = "issuer"
    LIFECYCLES = "lifecycle-writer"


class Form(StrEnum):
    """How the agents of a space read what is stored.

    ``compatible`` is the published rows: agents read streams and buckets themselves, and can have the broker put stored
    bytes on a subject of their choice (OPEN C9-a). ``mediated`` gives agents no such read (C9-47): the delivery plane
    reads for them and answers on their own reply rail.
    """

    COMPATIBLE = "compatible"
    MEDIATED = "mediated"


_HOUR: Final = 3600
LONGEST_SECONDS: Final = {
    Profile.AGENT: 90 * 24 * _HOUR,
    Profile.OBSERVER: 90 * 24 * _HOUR,
    Profile.ADMIN: 24 * _HOUR,
    Profile.DELIVERY: 24 * _HOUR,
    Profile.PROVISIONER: 600,
    Profile.DEPROVISIONER: 600,
    Profile.MEMBERSHIP_RW: 24 * _HOUR,
    Profile.OPERATOR: _HOUR,
    Profile.CHANNEL_WRITER: 600,
    Profile.PURGER: 600,
    Profile.LIMITER: 600,
    Profile.PROBE: 600,
    Profile.DM_READER: 90 * 24 * _HOUR,
    Profile.ENDPOINT: 24 * _HOUR,
    Profile.REGISTRY: 24 * _HOUR,
    Profile.RECORD_WRITER: 24 * _HOUR,
    Profile.PUBLISHER: 600,
    Profile.REGISTRAR: 600,
    Profile.ISSUER: 600,
    Profile.LIFECYCLES: 600,
}
"""Longest life of a credential of each profile, in seconds (CB-92)."""
SERVING: Final = (Profile.DELIVERY, Profile.ENDPOINT, Profile.REGISTRY)
"""Profiles that answer requests as one instance of one endpoint."""


@dataclass(frozen=True, slots=True)
class Capability:
    """One command of one endpoint that a holder may call, in one mode with its literal target (C13.9-007).

    ``endpoint`` is the dotted name, ``command`` ``*`` is every command of it (C13.9-009). ``target`` has the tokens of
    the mode: none for ``self`` and untargeted commands, an owner for ``owner``, ``any``, ``child`` and ``ledger``,
    owner, actor and uid for ``handle`` and ``exact``. ``journal`` adds the submission (C13.2-60). Raises InvalidName.
    """

    endpoint: str
    command: str
    mode: str = UNTARGETED
    target: tuple[str, ...] = ()
    journal: bool = False

    def __post_init__(self) -> None:
        endpoint_token(self.endpoint)
        if self.command != WILDCARD:
            GRAMMARS["command"].check(self.command)
        if self.mode != UNTARGETED and self.mode not in MODES:
            raise InvalidName("mode", "it is not one that is reserved", "C13.2-21")
        arity = {UNTARGETED: 0, "self": 0, "handle": 3, "exact": 3}.get(self.mode, 1)
        if len(self.target) != arity:
            raise InvalidName("target", f"{len(self.target)} tokens, the mode has {arity}", "C13.9-008")
        for name, token in zip(("owner", "actor", "uid"), self.target, strict=False):
            GRAMMARS[name].check(token)

    @property
    def tokens(self) -> dict[str, str]:
        """Endpoint, command and target as the fields of a request template; every command leaves its own out."""
        named = zip(("to_owner", "to_actor", "to_uid"), self.target, strict=False)
        command = {} if self.command == WILDCARD else {"command": self.command}
        return {"endpoint": endpoint_token(self.endpoint), **command, **dict(named)}


@dataclass(frozen=True, slots=True)
class EventRead:
    """What a holder may hear while it happens (C13.9-M19): one declared event of a cluster, ``*`` for every event of
    it, or, without a cluster, the progress of its own goals at that endpoint. Names are dotted. Raises InvalidName."""

    endpoint: str
    cluster: str = ""
    event: str = ""

    def __post_init__(self) -> None:
        endpoint_token(self.endpoint)
        if bool(self.cluster) != bool(self.event):
            raise InvalidName("event", "a cluster and its event are named together", "C13.7-07")
        if self.cluster:
            endpoint_token(self.cluster)
            if self.event != WILDCARD:
                GRAMMARS["word"].check(self.event)

    @property
    def tokens(self) -> dict[str, str]:
        """The fields of an event template."""
        named = {"endpoint": endpoint_token(self.endpoint)}
        if self.cluster:
            named["cluster"] = endpoint_token(self.cluster)
            if self.event != WILDCARD:
                named["event"] = self.event
        return named


@dataclass(frozen=True, slots=True)
class Service:
    """What a serving credential answers with: one instance of one endpoint (dotted name) at one epoch, and the
    commands that are registered (C13.9-019, C13.9-020). Raises InvalidName."""

    instance: str
    epoch: int
    commands: tuple[str, ...]
    endpoint: str = "delivery"

    def __post_init__(self) -> None:
        endpoint_token(self.endpoint)
        GRAMMARS["instance"].check(self.instance)
        GRAMMARS["number"].check(self.epoch)
        for command in self.commands:
            GRAMMARS["command"].check(command)

    @property
    def token(self) -> str:
        """The endpoint on the wire."""
        return endpoint_token(self.endpoint)


@dataclass(frozen=True, slots=True)
class Ending:
    """What one deprovisioner may end: a lifecycle, and its memberships of these channels and families (CB-74)."""

    lifecycle: Lifecycle
    channels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for channel in self.channels:
            member_channel(channel)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of one credential.

    ``connection`` names the reply inbox: the user's nkey in static spaces, which is the ``reader`` of history consumers
    there too (C9-12, CB-66). Channel lists hold names and patterns as they are stored (C9-06).

    With a ``generation`` its requests ride the issued rail alone (C13.15-04); ``listing`` is the generation of a
    credential of the other rail, good for the list of endpoints and nothing else (C13.15-28).
    """

    space: str
    lifecycle: Lifecycle
    connection: str
    form: Form = Form.MEDIATED
    subscribe: tuple[str, ...] = ()
    allow_subscribe: tuple[str, ...] | None = None
    allow_publish: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    service: Service | None = None
    ends: Ending | None = None
    hears: tuple[EventRead, ...] = ()
    generation: str | None = None
    listing: str | None = None

    def __post_init__(self) -> None:
        GRAMMARS["space"].check(self.space)
        GRAMMARS["connection"].check(self.connection)
        check_mintable(self.lifecycle.principal.owner)
        for generation in (self.generation, self.listing):
            if generation is not None:
                GRAMMARS["generation"].check(generation)
        if self.generation is not None and self.listing is not None:
            raise InvalidName("listing", "an issued credential lists with its own generation", "C13.15-32")
        for role in self.roles:
            GRAMMARS["role"].check(role)
        for channel in (*self.subscribe, *self.readable, *self.allow_publish):
            policy_channel(channel)
        for channel in self.subscribe:
            if not any(within(channel, entry) for entry in self.readable):
                raise InvalidName("subscribe", f"{channel} is within no single entry of the read list", "C9-07")

    @property
    def readable(self) -> tuple[str, ...]:
        """The read list: ``allow_subscribe``, or ``subscribe`` when it is not given (C9-08)."""
        return self.subscribe if self.allow_subscribe is None else self.allow_subscribe

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of its user JWT: all that a client must know of itself and cannot read from the grants."""
        return (
            *self.lifecycle.principal.tags,
            TAG_SPACE.build(space=self.space),
            TAG_FORM.build(form=self.form),
            TAG_LIFECYCLE.build(**self.lifecycle.names),
            *(TAG_ROLE.build(role=role) for role in self.roles),
            *self._serving_tags,
        )

    @property
    def _serving_tags(self) -> tuple[str, ...]:
        service = self.service
        if service is None:
            return ()
        return (
            TAG_ENDPOINT.build(endpoint=service.token),
            TAG_INSTANCE.build(instance=service.instance),
            TAG_EPOCH.build(epoch=service.epoch),
        )


def within(channel: str, entry: str) -> bool:
    """Whether one entry of a list contains a channel or pattern entirely (C9-07)."""
    return covers(entry, channel)
