"""What may be registered: the surface, the record and the artifacts must say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sidecar.rails.endpoint.clusters import AdmissionCeiling, Cluster, Command, Surface
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.schemas import schema
from sidecar.rails.endpoint.service_record import Activation, ServiceSpec
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.registration.faults import RegistrationRefused
from sidecar.rails.planes.registration.naming import Place, serving_principal
from sidecar.rails.planes.registration.register import Wanted, check_surface

NAME, ME, OWNER = "com.acme.echo", "0123456789abcdef0123456789abcdef", "local"
TEXT = schema({"type": "string"})


def command(name: str = "echo", **more: object) -> Command:
    fields = {"name": name, "capability": f"echo.{name}", "input_digest": TEXT.closure, "output_digest": TEXT.closure}
    return Command(**{**fields, **more})  # type: ignore[arg-type]


JOURNAL = command(contract_class="journal", ceiling=AdmissionCeiling(1024, 8, 64))


def wanted(*clusters: Cluster, activation: Activation | None = None, protocol: int = 1) -> Wanted:
    surface = Surface(clusters or (Cluster("com.acme.echo", 1, (command(),)),), protocol)
    return Wanted(
        Place("main", NAME, ME),
        Lifecycle(serving_principal(OWNER, ME), ME),
        ServiceSpec(NAME, OWNER, surface.digests, protocol, activation=activation),
        surface,
        {**surface.artifacts, **TEXT.artifacts},
    )


def code_of(one: Wanted) -> Code:
    with pytest.raises(RegistrationRefused) as caught:
        check_surface(one)
    return caught.value.code


@pytest.mark.req("C13.6-95", "C13.6-97")
def test_an_endpoint_that_is_activated_on_demand_has_journal_commands_alone() -> None:
    on_demand = Activation(1)
    check_surface(wanted(Cluster("com.acme.echo", 1, (JOURNAL,)), activation=on_demand))
    mixed = (Cluster("com.acme.echo", 1, (JOURNAL,)), Cluster("com.acme.other", 1, (command("other"),)))
    assert code_of(wanted(*mixed, activation=on_demand)) == Code.CONTRACT_INVALID
    check_surface(wanted(*mixed))


@pytest.mark.req("C13.6-96", "C13.2-08")
def test_a_command_is_declared_once_over_all_clusters() -> None:
    twice = (Cluster("com.acme.echo", 1, (command(),)), Cluster("com.acme.other", 1, (command(),)))
    assert code_of(wanted(*twice)) == Code.CONTRACT_INVALID
    owner = wanted(Cluster("com.acme.echo", 1, (command("resume"),)))
    assert code_of(owner) == Code.CONTRACT_INVALID
    check_surface(replace(owner, reserved=("resume",)))


@pytest.mark.req("C13.7-61", "C13.2-05")
@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (
            lambda one: replace(one, spec=replace(one.spec, cluster_digests=("sha256:" + "0" * 64,))),
            Code.CONTRACT_INVALID,
        ),
        (lambda one: replace(one, spec=replace(one.spec, endpoint="com.acme.other")), Code.CONTRACT_INVALID),
        (lambda one: replace(one, spec=replace(one.spec, protocol=2)), Code.CONTRACT_INVALID),
        (lambda one: replace(one, spec=replace(one.spec, owner="u_" + "b" * 26)), Code.PERMISSION_DENIED),
        (lambda one: replace(one, artifacts=one.surface.artifacts), Code.CONTRACT_INVALID),
        (lambda one: replace(one, artifacts=TEXT.artifacts), Code.CONTRACT_INVALID),
    ],
)
def test_a_record_that_does_not_say_what_is_served_is_refused(spoil: Callable[[Wanted], Wanted], code: Code) -> None:
    check_surface(wanted())
    assert code_of(spoil(wanted())) == code
