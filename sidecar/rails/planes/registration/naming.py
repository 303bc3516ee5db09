"""Names of what an instance is: its serving principal, and the coordinates of its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Principal
from sidecar.rails.names.tokens import GRAMMARS, endpoint_token

SERVICE_KIND: Final = "svc"
"""The record kind of a registration (C13.7-61)."""
_ACTOR_CHARS: Final = 20


def serving_principal(owner: str, instance: str) -> Principal:
    """The connection principal of an instance (C13.1-068). It is made of the instance id, never of the endpoint's token
    (C13.2-06). Raises InvalidName."""
    return Principal(owner, f"ep_{GRAMMARS['instance'].check(instance)[:_ACTOR_CHARS]}")


@dataclass(frozen=True, slots=True)
class Place:
    """One instance of one endpoint in one space; ``endpoint`` is the dotted name. Raises InvalidName."""

    space: str
    endpoint: str
    instance: str

    def __post_init__(self) -> None:
        GRAMMARS["space"].check(self.space)
        endpoint_token(self.endpoint)
        GRAMMARS["instance"].check(self.instance)

    @property
    def token(self) -> str:
        return endpoint_token(self.endpoint)

    @property
    def gate(self) -> str:
        """Subject of its gate."""
        return self.gate_of(self.instance)

    def gate_of(self, instance: str) -> str:
        """Subject of the gate of any instance of the endpoint."""
        return buckets.AUTH.subject(self.space, buckets.AUTH_ENDPOINT_GATE, endpoint=self.token, instance=instance)

    def credential(self, credential: str) -> str:
        """Subject of the ledger row of one of its credentials."""
        names = {"endpoint": self.token, "instance": self.instance, "credential": credential}
        return buckets.AUTH.subject(self.space, buckets.AUTH_ENDPOINT_CREDENTIAL, **names)

    @property
    def credentials(self) -> str:
        """Filter of all of its ledger rows."""
        names = {"endpoint": self.token, "instance": self.instance}
        return buckets.AUTH.filter(self.space, buckets.AUTH_ENDPOINT_CREDENTIAL, **names)

    @property
    def govern(self) -> str:
        """Subject of the governance head of its endpoint."""
        return buckets.RECORDS.subject(self.space, buckets.RECORD_GOVERN, endpoint=self.token)

    @property
    def spec(self) -> str:
        """Subject of its service record, the half of the registration."""
        return self._record(self.instance, "spec")

    @property
    def status(self) -> str:
        """Subject of the half that the instance reports."""
        return self._record(self.instance, "status")

    @property
    def specs(self) -> str:
        """Filter of the specs of every instance of the endpoint."""
        return buckets.RECORDS.filter(self.space, buckets.RECORD_SERVICE, endpoint=self.token, half="spec")

    def _record(self, instance: str, half: str) -> str:
        names = {"endpoint": self.token, "instance": instance, "half": half}
        return buckets.RECORDS.subject(self.space, buckets.RECORD_SERVICE, **names)
