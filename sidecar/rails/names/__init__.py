"""Every subject, stream, bucket, key, durable, inbox and header of the messaging and endpoint rails, in one place.

One table of templates (``table.TEMPLATES``, printed as docs/names.md). From a row come four forms:

    subjects.CHAT.build(space="main", owner="local", actor="alice", channel="team.backend")   a name to publish to
    subjects.CHAT.parse(text)            its fields, each one judged; ``split`` takes apart and judges nothing
    subjects.CHAT.filter(space="main", channel="team.*")    cotal.main.chat.*.*.team.*
    subjects.INST.subtree(space="main", to_owner="local", to_actor="bob")   cotal.main.inst.local.bob.>

``filter`` and ``subtree`` are also the rows of permissions; ``grants`` adds queue groups, consumer rows, denies and
containment. ``subjects.delivery_of`` is the parser of received messages. Nothing outside of this package spells a name.
"""

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.template import Template

__all__ = ["InvalidName", "Lifecycle", "Principal", "Template"]
