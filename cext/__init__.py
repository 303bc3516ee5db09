"""Compiled hot paths: framing, TLV, credit arithmetic and digest preimages.

The modules do no I/O, know no protocol state and have no Python fallback; their plain-Python oracles live in
``tests/oracles``.
"""
