"""A recognisable secret, and the search for it in every spelling that a leak could have."""

from __future__ import annotations

import base64

CANARY = b"canary-seed-of-32-bytes-0123456!"
assert len(CANARY) == 32


def spellings_in(text: str | bytes) -> list[str]:
    """Names of the spellings of the canary (or of half of it) that occur in ``text``."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    folded = data.lower()
    found = []
    for part in (CANARY, CANARY[:16], CANARY[16:]):
        spellings = {
            "raw": part.lower(),
            "hex": part.hex().encode(),
            "spaced hex": part.hex(" ").encode(),
            "escaped": "".join(f"\\x{byte:02x}" for byte in part).encode(),
            "decimal": ", ".join(str(byte) for byte in part).encode(),
            "base64": base64.b64encode(part)[:20].lower(),
            "base64url": base64.urlsafe_b64encode(part)[:20].lower(),
        }
        found += [name for name, spelling in spellings.items() if spelling in folded]
    return found
