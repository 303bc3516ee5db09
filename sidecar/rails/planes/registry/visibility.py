"""What a caller may see: the commands that its recorded ceiling holds on an endpoint, judged anew at each read
(C13.9-049, C13.20-03). The caller is the one that the broker authenticated; nothing of it is taken from arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from sidecar.rails.endpoint.view import REGISTRY
from sidecar.rails.names import planes
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.tokens import endpoint_token
from sidecar.rails.planes.registration.gates import Gate, GateState
from sidecar.rails.planes.registry.artifacts import Artifacts, Declares, State
from sidecar.rails.planes.registry.coverage import Coverage, Declared, parts
from sidecar.rails.planes.registry.disclosure import Ceilings, NotLive
from sidecar.rails.planes.registry.listing import declarations
from sidecar.rails.planes.registry.records import Records, Registered
from sidecar.rails.space.ceilings import Ceiling

CORE: Final = frozenset({REGISTRY, "delivery"})
"""Endpoints of the space itself, whose instances everybody may know."""
_ACTOR: Final = "ep_"
"""How the actor of a serving credential begins; the head of its instance id follows."""
_SCANNED: Final = 256
"""Gates that are looked at for a principal whose name does not say its instance."""


class Visibility:
    """Everything raises Unreadable when a read did not complete."""

    def __init__(self, space: str, records: Records, artifacts: Artifacts, ceilings: Ceilings) -> None:
        self._space, self._records, self._artifacts, self._ceilings = space, records, artifacts, ceilings

    async def declared(self, instances: Mapping[str, Registered]) -> dict[str, Declares]:
        """What each instance declares; those of one generation are judged once."""
        judged: dict[tuple[tuple[str, ...], int], Declares] = {}
        found = {}
        for instance, one in instances.items():
            if one.spec is None:
                found[instance] = Declares(State.INVALID, {}, one.why)
                continue
            key = (tuple(one.spec.cluster_digests), one.spec.protocol)
            if key not in judged:
                judged[key] = await self._artifacts.declares(*key)
            found[instance] = judged[key]
        return found

    async def held(
        self, endpoint: str, declared: list[Declared], caller: Lifecycle, generation: str | None
    ) -> frozenset[str] | None:
        """Names of the commands that a caller holds: by the ceiling of its generation, or, on the rail that names none,
        by those of all its live ones. None when no ceiling is recorded on that rail."""
        ceilings = await self._live(caller, generation)
        if ceilings is None:
            return None
        found: set[str] = set()
        for one, ceiling in ceilings:
            coverage = Coverage(ceiling.publish, self._space, caller, one)
            for piece in parts(declared):
                found |= coverage.held(endpoint, piece)
                await asyncio.sleep(0)  # a large surface is no reason for the others to wait
        return frozenset(found)

    async def _live(self, caller: Lifecycle, generation: str | None) -> list[tuple[str, Ceiling]] | None:
        """The ceilings that a caller's rail stands for, with their generations; none for a generation that is not
        live, None when nothing is recorded on the rail that names none."""
        if generation is None:
            return await self._ceilings.live(caller) or None
        try:
            return [(generation, await self._ceilings.of(caller, generation))]
        except NotLive:
            return []

    async def hears(self, endpoint: str, topic: str, caller: Lifecycle, generation: str | None) -> bool:
        """Whether a caller may hear a topic from every instance: what is stored is read with the grant that admits it
        live (C13.7-07, C13.9-049)."""
        pattern = planes.EVENT.filter(space=self._space, endpoint=endpoint_token(endpoint), topic=topic)
        ceilings = await self._live(caller, generation)
        return any(ceiling.subscribe.permits(pattern) for _, ceiling in ceilings or ())

    async def sees(self, endpoint: str, caller: Lifecycle, generation: str | None) -> dict[str, Registered]:
        """The registrations of an endpoint, if the caller may know of them; else as if there were none."""
        instances = (await self._records.registered(endpoint)).get(endpoint, {})
        if not instances or endpoint in CORE:
            return instances
        declared = declarations(await self.declared(instances))
        if await self.held(endpoint, declared, caller, generation):
            return instances
        return instances if await self.serves(endpoint, instances, caller) else {}

    async def serves(self, endpoint: str, instances: Mapping[str, Registered], caller: Lifecycle) -> bool:
        """Whether a caller is the serving principal of one of the instances, by its gate of now (C13.9-063)."""
        head = caller.principal.actor.removeprefix(_ACTOR)
        likely = [one for one in instances if one.startswith(head)]
        others = [one for one in instances if not one.startswith(head)]
        for group in (likely, others[:_SCANNED]):
            for gate in await self._records.gates(endpoint, group):
                if not isinstance(gate, Gate) or gate.state is GateState.RETIRED:
                    continue
                if gate.principal == caller.principal:
                    return True
        return False
