"""Bytes of ``phux-coordinator/1``: frames, records, limits and ids, each fact in one table.

``frames`` is the door: ``decode_frame`` and one class per frame. ``describe`` prints the tables as documentation.
"""
