"""An endpoint as its author writes it: commands with their schemas, events, and the handlers (C13-02, 13.7).

    endpoint = Endpoint("com.acme.echo")

    @endpoint.command(input={"type": "string"}, output={"type": "string"}, effect="read")
    async def echo(call: Call) -> JsonValue:
        return call.args

    endpoint.run("nats://127.0.0.1:4222", "serve.creds")

What is declared gives the surface, the contracts and the artifacts to register. Who has the creds of a registered
instance serves it with ``run``, or with ``serve`` in a loop of its own; ``server`` is for who has a connection already.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Notice
from sidecar.rails.endpoint.artifacts import ContractInvalid
from sidecar.rails.endpoint.call import Authorize, Handler
from sidecar.rails.endpoint.clusters import EPHEMERAL, Cluster, Surface
from sidecar.rails.endpoint.clusters import Event as DeclaredEvent
from sidecar.rails.endpoint.contracts import Contract, Contracts, document
from sidecar.rails.endpoint.descriptor import ENDPOINT_TYPE
from sidecar.rails.endpoint.events import Event
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.endpoint.running import Creds, serving, until_stopped
from sidecar.rails.endpoint.schemas import VOID_SCHEMA, Schema, schema
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.endpoint.serve_describe import Described
from sidecar.rails.endpoint.serve_targets import RELATED
from sidecar.rails.endpoint.view import Mappings, View
from sidecar.rails.envelopes.shapes import Shape
from sidecar.rails.names.tokens import ENDPOINT_NAME, MODES

Form: TypeAlias = "Schema | Shape | Mapping[str, JsonValue] | None"
"""How the author gives a schema: compiled, as a shape of ours, as a JSON Schema document, or None for nothing."""
Effect: TypeAlias = Literal["read", "write"]
_EFFECTS: Final = get_args(Effect)
_OWN_CLUSTER: Final = "ai.cotal"


@dataclass(frozen=True, slots=True)
class _Listed:
    """One command as it is declared; ``schemas`` are what it takes and gives."""

    contract: Contract
    schemas: tuple[Schema, Schema]
    handler: Handler
    authorize: Authorize | None


@dataclass(slots=True)
class _Group:
    """A cluster that grows."""

    commands: dict[str, _Listed] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)


class Endpoint:
    """The commands and events of one endpoint, and who handles them."""

    def __init__(
        self,
        name: str,
        *,
        protocol: int = 1,
        public: bool = False,
        endpoint_type: str | None = None,
        owner_reserved: Sequence[str] = (),
        revision: int = 1,
    ) -> None:
        """``protocol`` 2 declares the effect of every command to callers (C13.7-16); ``public`` descriptors are shown
        to everybody (C13.7-68); ``owner_reserved`` are reserved command names that this endpoint owns (OPEN C13.2-a);
        ``revision`` is that of its clusters; ``endpoint_type`` is the URN of a conformance set, and means nothing here
        (C13.7-08). Raises InvalidName, and ContractInvalid for a type that is none."""
        self.name = ENDPOINT_NAME.check(name)
        if endpoint_type is not None and (fault := ENDPOINT_TYPE.check(endpoint_type)) is not None:
            raise ContractInvalid("endpointType", fault.why)
        self.protocol, self.public, self.endpoint_type = protocol, public, endpoint_type
        self.reserved, self._revision = tuple(owner_reserved), revision
        self._default = name if "." in name else f"{_OWN_CLUSTER}.{name}"
        self._groups: dict[str, _Group] = {}
        self._surface: Surface | None = None

    @classmethod
    def of(
        cls,
        name: str,
        contracts: Contracts,
        handlers: Mapping[str, Handler],
        *,
        authorize: Mapping[str, Authorize] | None = None,
        cluster: str | None = None,
        **more: Any,
    ) -> Endpoint:
        """The endpoint of a table of contracts; those without a handler are not served. ValueError for a handler
        without a contract. ``more`` is that of the constructor."""
        if unknown := handlers.keys() - contracts.keys():
            raise ValueError(f"no contract for {', '.join(sorted(unknown))}")
        made = cls(name, **more)
        for command, handler in handlers.items():
            contract = contracts[command]
            schemas = _schema(contract.input), _schema(contract.output)
            made._add(cluster, _Listed(contract, schemas, handler, (authorize or {}).get(command)))
        return made

    # ---- declaring ----

    def command(
        self,
        name: str | None = None,
        *,
        input: Form = None,
        output: Form = None,
        effect: Effect = "write",
        modes: Sequence[str] = (),
        capability: str | None = None,
        idempotent: bool = False,
        waits: bool = False,
        cluster: str | None = None,
        authorize: Authorize | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare a command; its name is that of the function, with ``-`` for ``_``, unless one is given.

        ``modes`` are the authorization modes of a targeted command; ``child`` and ``ledger`` need ``authorize``, which
        reads the relation (C13.2-34, -35). ``idempotent`` commands are answered again from what is kept, by id
        (C13.8-01). ``waits`` are counted apart from those that work. A ``read`` changes nothing (C13.7-12).

        Raises ContractInvalid, InvalidName, and ValueError for a name twice, a relation that nobody checks and a
        handler that is no ``async def``.
        """
        if effect not in _EFFECTS:
            raise ValueError(f"an effect is read or write, not {effect!r}")
        schemas = (_schema(input), _schema(output))

        def declare(handler: Handler) -> Handler:
            contract = Contract(
                name if name is not None else getattr(handler, "__name__", "").replace("_", "-"),
                schemas[0].shape,
                schemas[1].shape,
                modes=tuple(modes),
                waits=waits,
                effect=effect,
                capability=capability or "",
                idempotent=idempotent,
                input_digest=schemas[0].closure,
                output_digest=schemas[1].closure,
            )
            self._add(cluster, _Listed(contract, schemas, handler, authorize))
            return handler

        return declare

    def event(self, name: str, schema: Form, cluster: str | None = None) -> Event:
        """Declare an event; what is given back is what a handler emits. Raises ContractInvalid, InvalidName, ValueError
        for a name twice."""
        urn, group = self._open(cluster)
        made = Event(urn, name, _schema(schema))
        if name in group.events:
            raise ValueError(f"{made.topic} is declared twice")
        group.events[name] = made
        return made

    def _open(self, cluster: str | None) -> tuple[str, _Group]:
        if self._surface is not None:
            raise ValueError(f"the surface of {self.name} is in use: it takes no more")
        urn = self._default if cluster is None else cluster
        return urn, self._groups.setdefault(urn, _Group())

    def _add(self, cluster: str | None, listed: _Listed) -> None:
        _, group = self._open(cluster)
        contract = listed.contract
        name, modes = contract.command, set(contract.modes)
        if any(name in one.commands for one in self._groups.values()):
            raise ValueError(f"the command {name} is declared twice")
        if inspect.isfunction(listed.handler) and not inspect.iscoroutinefunction(listed.handler):
            raise ValueError(f"{name}: its handler is no async def")  # it would fail at the first request only
        if contract.contract_class != EPHEMERAL:
            raise ValueError(f"{name}: nobody decides the submissions of a {contract.contract_class} command here")
        if unknown := modes - set(MODES):
            raise ValueError(f"{name}: {', '.join(sorted(unknown))} is no authorization mode (C13.2-21)")
        if (related := RELATED & modes) and listed.authorize is None:
            raise ValueError(f"{name}: nobody checks the relation of mode {', '.join(sorted(related))} (C13.2-34, -35)")
        group.commands[name] = listed

    # ---- what it gives ----

    @property
    def surface(self) -> Surface:
        """All clusters, checked; from here on nothing more can be declared. Raises ContractInvalid."""
        if self._surface is None:
            clusters = tuple(
                Cluster(
                    urn,
                    self._revision,
                    # By name, so that to move a declaration within a file is not another contract.
                    tuple(one.contract.declared(self.name, self.protocol) for _, one in sorted(group.commands.items())),
                    tuple(DeclaredEvent(name, one.schema.closure) for name, one in sorted(group.events.items())),
                )
                for urn, group in self._groups.items()
            )
            surface = Surface(clusters, self.protocol)
            surface.check(self.reserved)
            self._surface = surface
        return self._surface

    @property
    def contracts(self) -> Contracts:
        """What each command takes and gives."""
        return {name: one.contract for name, one in self._listed.items()}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Who handles each command."""
        return {name: one.handler for name, one in self._listed.items()}

    @property
    def events(self) -> tuple[Event, ...]:
        """Every declared event."""
        return tuple(one for group in self._groups.values() for one in group.events.values())

    @property
    def artifacts(self) -> Mapping[str, bytes]:
        """Everything that has to be published before an instance is registered: digest -> canonical bytes."""
        found: dict[str, bytes] = {}
        for cluster in self.surface.clusters:
            found |= cluster.artifacts
        for one in self._listed.values():
            for side in one.schemas:
                found |= side.artifacts
        for event in self.events:
            found |= event.schema.artifacts
        return found

    @property
    def _listed(self) -> dict[str, _Listed]:
        return {name: one for group in self._groups.values() for name, one in group.commands.items()}

    # ---- serving ----

    def serve(
        self,
        servers: str | Sequence[str],
        creds: Creds,
        *,
        tls: ssl.SSLContext | None = None,
        watch: Callable[[Notice], None] | None = None,
        metrics: Metrics | None = None,
        log: Log | None = None,
        **limits: Any,
    ) -> contextlib.AbstractAsyncContextManager[EndpointServer]:
        """Serve the instance that creds are of, for a block::

            async with endpoint.serve("nats://127.0.0.1:4222", "serve.creds") as server:
                await server.wait()  # raises Superseded when a later registration has taken over

        ``creds`` is the path of what ``sidecar ep register --out`` has written, or its content as bytes. At the end of
        the block what has begun is finished, for at most five seconds. To connect takes as long as there is no broker:
        bound it with ``asyncio.timeout``. ``log`` goes to the standard error by default; ``limits`` are those of
        :class:`EndpointServer`. Raises InvalidCreds, UnsafeFile, Stopped; ValueError for another endpoint's creds.
        """
        return serving(self, servers, creds, tls=tls, watch=watch, metrics=metrics, log=log, **limits)

    def run(self, servers: str | Sequence[str], creds: Creds, **more: Any) -> None:
        """:meth:`serve` as the whole of a program: until SIGINT or SIGTERM. Raises what it raises, and what
        ``EndpointServer.wait`` raises: Superseded when a later registration has taken over."""
        asyncio.run(until_stopped(self, servers, creds, **more))

    def server(
        self,
        connection: Connection,
        identity: Identity,
        *,
        view: View | None = None,
        mappings: Mappings | None = None,
        metrics: Metrics,
        log: Log,
        **limits: Any,
    ) -> EndpointServer:
        """An instance on a connection with the serve credential of ``identity``; ``start`` it. ``limits`` are those of
        :class:`EndpointServer`. ValueError for another endpoint's identity, for a descriptor that is not public without
        a view (C13.7-66), and for targets that nobody can look up (C13.2-38)."""
        if identity.endpoint != self.name:
            raise ValueError(f"the credential serves {identity.endpoint}, not {self.name}")
        if view is None and not self.public:
            raise ValueError(f"{self.name} has no view of its callers and no public descriptor (C13.7-66)")
        named = [name for name, one in self._listed.items() if set(one.contract.modes) - {"self"}]
        if named and mappings is None:
            raise ValueError(f"{self.name} cannot look up the targets of {', '.join(named)} (C13.2-38)")
        described = Described(
            self.surface,
            self.name,
            identity.owner,
            endpoint_type=self.endpoint_type,
            view=None if self.public else view,
        )
        return EndpointServer(
            connection,
            identity.space,
            self.name,
            identity.instance,
            identity.epoch,
            self.handlers,
            self.contracts,
            metrics=metrics,
            log=log,
            described=described,
            mappings=mappings,
            authorize={name: one.authorize for name, one in self._listed.items() if one.authorize is not None},
            events=self.events,
            **limits,
        )


def _schema(form: Form) -> Schema:
    """A compiled schema. A shape of ours keeps its own check, which is stricter than the document that it publishes."""
    if form is None:
        return VOID_SCHEMA
    if isinstance(form, Schema):
        return form
    if isinstance(form, Shape):
        found = schema(document(form))
        return replace(found, shape=form)
    return schema(form)
