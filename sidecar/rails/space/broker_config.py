"""The part of a nats-server configuration that spaces need: operator, full resolver, floors (C9-01, C13.12-01)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MAX_CONTROL_LINE: Final = 65536
"""The largest CONNECT line with the largest token fits with room to spare (C13.12-05)."""

CONNECT_ENVELOPE: Final = 1024
"""Bytes of a CONNECT line beside the token: signature, options, names of the client."""
MAX_MINTED_JWT_BYTES: Final = MAX_CONTROL_LINE - CONNECT_ENVELOPE
"""Longest token that is minted (C13.9-014)."""

MAX_PAYLOAD: Final = 1024 * 1024
"""At least 256 KiB and the margin of an envelope (C13.12-06)."""

_TEXT: Final = """\
operator: "{operator}"
system_account: "{system}"
resolver {{
  type: full
  dir: "{directory}"
  # Accounts come and go at run time; a deleted one is gone at once.
  allow_delete: true
  interval: "2m"
}}
resolver_preload {{
  {system}: "{system_token}"
}}
max_control_line: {control_line}
max_payload: {payload}
"""


def trust_section(operator_token: str, system_account: str, system_token: str, resolver_directory: Path) -> str:
    """Lines of a configuration file. Every token in them is public: it proves who is trusted and opens nothing."""
    return _TEXT.format(
        operator=operator_token,
        system=system_account,
        system_token=system_token,
        directory=resolver_directory,
        control_line=MAX_CONTROL_LINE,
        payload=MAX_PAYLOAD,
    )
