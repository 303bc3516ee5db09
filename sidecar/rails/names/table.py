"""The whole name table: the templates of every module, in the order of docs/names.md."""

from __future__ import annotations

from sidecar.rails.names import api, buckets, consumers, endpoint, inboxes, planes, principals, streams, subjects
from sidecar.rails.names.template import Template

SECTIONS: tuple[tuple[str, tuple[Template, ...]], ...] = (
    ("Principals", principals.TEMPLATES),
    ("Messaging subjects", subjects.TEMPLATES),
    ("Endpoint rails", endpoint.TEMPLATES),
    ("Endpoint planes", planes.TEMPLATES),
    ("Streams", streams.TEMPLATES),
    ("Buckets and keys", buckets.TEMPLATES),
    ("Consumers", consumers.TEMPLATES),
    ("Inboxes", inboxes.TEMPLATES),
    ("Broker interfaces", api.TEMPLATES),
)
TEMPLATES: tuple[Template, ...] = tuple(template for _, section in SECTIONS for template in section)
