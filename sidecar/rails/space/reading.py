"""What the rows of a credential say of its holder, for judging one that was found (C13.9-043). Pure.

Nothing here approves a row: the audit judges what was read, with the rules that hold for every holder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from sidecar.rails.names import endpoint
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import TAG_ENDPOINT, TAG_EPOCH, TAG_INSTANCE
from sidecar.rails.names.tokens import TAIL, WILDCARD, endpoint_name
from sidecar.rails.space.claims import Permissions, UserClaims
from sidecar.rails.space.holder import Capability, Holder, Service
from sidecar.rails.space.rows import REGISTRY_ENDPOINT

_FIRST = "one"


def with_listing(holder: Holder, granted: Permissions) -> Holder:
    """The holder with the listing generation that its rows name, if they do."""
    template = endpoint.REQUESTS[_FIRST, UNTARGETED, True]
    for row in granted.publish.allow:
        with contextlib.suppress(InvalidName):
            found = template.split(row)
            if (found["endpoint"], found["command"]) == (REGISTRY_ENDPOINT, "endpoints"):
                return replace(holder, listing=found["generation"])
    return holder


def as_granted(holder: Holder, user: UserClaims) -> Holder:
    """The holder with what its rows and tags name beside its profile: listing, capabilities, the instance it serves."""
    found = with_listing(holder, user.permissions)
    return replace(found, capabilities=tuple(dict.fromkeys(_capabilities(user.permissions))), service=_service(user))


def _capabilities(granted: Permissions) -> Iterator[Capability]:
    for mode in dict.fromkeys(mode for _, mode, _ in endpoint.REQUESTS):
        template, submission = endpoint.REQUESTS[_FIRST, mode, False], endpoint.SUBMISSIONS[mode]
        for row in granted.publish.allow:
            for form, journal in ((template, False), (submission, True)):
                with contextlib.suppress(InvalidName):
                    told = form.split(row)
                    names = [told[one] for one in ("to_owner", "to_actor", "to_uid") if one in told]
                    if told["endpoint"] != WILDCARD:
                        yield Capability(endpoint_name(told["endpoint"]), told["command"], mode, tuple(names), journal)


def _service(user: UserClaims) -> Service | None:
    told = {template: [tag for tag in user.tags if template.fits(tag)] for template in _TAGS}
    if not all(len(tags) == 1 for tags in told.values()):
        return None
    name, instance, epoch = (template.parse(told[template][0]) for template in _TAGS)
    commands = []
    for row in user.permissions.subscribe.allow:
        tokens = row.partition(" ")[0].split(".")
        if tokens[2:5] == ["ep", _FIRST, name["endpoint"]] and len(tokens) == 7 and tokens[6] == TAIL:
            commands.append(tokens[5])
    with contextlib.suppress(InvalidName):
        return Service(instance["instance"], int(epoch["epoch"]), tuple(commands), endpoint_name(name["endpoint"]))
    return None


_TAGS = (TAG_ENDPOINT, TAG_INSTANCE, TAG_EPOCH)
