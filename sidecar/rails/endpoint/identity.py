"""Which incarnation of which endpoint a serving credential makes its holder (C13.14-01).

Read from the tags of the token. What is read here decides what is subscribed and where answers go; the grants of the
credential are the boundary, so that a wrong reading is refused by the broker and cannot reach another endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.base.secret import Secret
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import (
    TAG_ENDPOINT,
    TAG_EPOCH,
    TAG_INSTANCE,
    TAG_LIFECYCLE,
    TAG_SPACE,
    Lifecycle,
    Principal,
)
from sidecar.rails.names.template import Template
from sidecar.rails.names.tokens import GRAMMARS, endpoint_name, endpoint_token
from sidecar.rails.space.creds import InvalidCreds, parse_creds


class NoIncarnation(InvalidCreds):
    """Creds whose token does not name one instance of one endpoint; the message shows nothing of the token."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One incarnation: ``endpoint`` is the dotted name, ``owner`` who owns it (C13.2-23), ``lifecycle`` the principal
    that serves. Epoch 0 is a normal one (C13.7-64). Raises InvalidName."""

    space: str
    endpoint: str
    instance: str
    epoch: int
    lifecycle: Lifecycle
    owner: str

    def __post_init__(self) -> None:
        GRAMMARS["space"].check(self.space)
        GRAMMARS["instance"].check(self.instance)
        GRAMMARS["number"].check(self.epoch)
        GRAMMARS["owner"].check(self.owner)
        endpoint_token(self.endpoint)

    @property
    def token(self) -> str:
        """The endpoint on the wire (C13.2-04)."""
        return endpoint_token(self.endpoint)


def identity_of(creds: Secret | bytes | str) -> Identity:
    """From the content of a creds file. Raises InvalidCreds; NoIncarnation when the token is not one that serves."""
    text = creds.encode() if isinstance(creds, str) else creds
    tags = parse_creds(text if isinstance(text, Secret) else Secret(text)).user.tags
    try:
        life = _single(TAG_LIFECYCLE, tags)
        lifecycle = Lifecycle(Principal(life["owner"], life["actor"]), life["uid"])
        return Identity(
            space=_single(TAG_SPACE, tags)["space"],
            endpoint=endpoint_name(_single(TAG_ENDPOINT, tags)["endpoint"]),
            instance=_single(TAG_INSTANCE, tags)["instance"],
            epoch=int(_single(TAG_EPOCH, tags)["epoch"]),
            lifecycle=lifecycle,
            owner=lifecycle.principal.owner,
        )
    except InvalidName as error:
        raise NoIncarnation(f"the credential serves no endpoint: {error.reason}") from None


def _single(template: Template, tags: Iterable[str]) -> dict[str, str]:
    """The fields of the one tag of a template; InvalidName otherwise."""
    found = [tag for tag in tags if template.fits(tag)]
    if len(found) != 1:
        raise InvalidName("credential", f"{len(found)} tags are a {template.name}", "C13.14-01")
    return template.split(found[0])
