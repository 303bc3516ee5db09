"""Whom a targeted request is about: resolved right before its handler runs, against the mapping of that moment (13.2).

The broker has proved what the mode says that it proves; what is left is checked here. A check that cannot be made
refuses (C13.2-34, -35).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.ops.logging import Log, told
from sidecar.rails.endpoint.call import Authorize, Call, CallTarget
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.envelope import Target
from sidecar.rails.endpoint.judge import Accepted
from sidecar.rails.endpoint.view import Mappings, Unavailable
from sidecar.rails.names import headers
from sidecar.rails.names.principals import Lifecycle, Principal

RELATED: Final = frozenset({"child", "ledger"})
"""Modes in which the broker proves an owner, and the handler's side the relation."""


class Targets:
    """The targets of one endpoint. ``authorize`` reads the relation of a command's ``child`` and ``ledger`` modes."""

    def __init__(self, mappings: Mappings | None, authorize: Mapping[str, Authorize], log: Log) -> None:
        self._mappings, self._authorize, self._log = mappings, dict(authorize), log

    async def resolve(self, accepted: Accepted, call: Call) -> CallTarget:
        """The target, current now. Raises Refusal; the relation is asked first, the mapping last (C13.2-38)."""
        named = accepted.request.target
        if named is None:  # mode self: the broker has proved the caller, and the target is the caller
            return CallTarget(call.caller)
        lifecycle = Lifecycle(Principal(named.owner, named.actor), named.lifecycle_uid)
        call.target = CallTarget(lifecycle, named.mapping_revision)
        if call.mode in RELATED:
            await self._relation(accepted.contract.command, call)
        return CallTarget(lifecycle, await self._current(lifecycle.principal, named))

    async def _relation(self, command: str, call: Call) -> None:
        check = self._authorize.get(command)
        if check is None:
            raise _refused(Code.PERMISSION_DENIED, "nobody can check the relation to this target")
        try:
            related = await check(call)
        except Refusal:
            raise
        except Exception as error:
            self._log.error("endpoint_relation_failed", command=command, why=told(error))
            raise _refused(Code.UNAVAILABLE, "the relation to this target cannot be read") from None
        if related is not True:
            raise _refused(Code.PERMISSION_DENIED, "the caller is not related to this target as the mode says")

    async def _current(self, principal: Principal, named: Target) -> int:
        """The revision of the mapping that makes the target current (C13.2-40, -41, C13.3-23, -24)."""
        try:
            if self._mappings is None:
                raise Unavailable
            mapping = await self._mappings.current(principal)
        except Exception as error:
            if not isinstance(error, Unavailable):
                self._log.error("endpoint_mapping_failed", why=told(error))
            raise _refused(Code.UNAVAILABLE, "the mappings of targets cannot be read") from None
        if mapping is None:
            kind = {"kind": headers.DETAIL_UNMAPPED}
            raise Refusal(Code.EXPIRED, "the target has no current lifecycle here", Outcome.NOT_EXECUTED, (kind,))
        if mapping.uid != named.lifecycle_uid:
            raise _refused(Code.EXPIRED, "the target has another lifecycle now")
        if named.mapping_revision not in (None, mapping.revision):
            raise _refused(Code.EXPIRED, "the mapping of the target has another revision now")
        return mapping.revision


def _refused(code: Code, message: str) -> Refusal:
    return Refusal(code, message, Outcome.NOT_EXECUTED)
