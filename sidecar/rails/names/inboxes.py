"""Reply inboxes. A connection's inbox is named by its own nonce or nkey, the one place where an nkey stands (C2-11)."""

from __future__ import annotations

from sidecar.rails.names.template import Kind, Template, listed

INBOX = Template(Kind.INBOX, "inbox", "_INBOX_<connection>", "C2-11", "inbox prefix; its grant is everything below")
MEMBERSHIP = Template(
    Kind.INBOX, "membership observer inbox", "_INBOX.cotal-membership", "CB-117", "system account, everything below"
)
CENSUS = Template(
    Kind.INBOX, "account census inbox", "_INBOX.cotal-account-census.<id>", "CB-95", "system account, everything below"
)
SYSTEM = Template(Kind.INBOX, "shared inbox", "_INBOX", "CB-118", "everything below; system account only")

TEMPLATES = listed(globals())
