"""The client library's parser, with a short way for the lines of which there are most: whole messages without headers.

Whatever is not exactly such a line goes the library's way, and so does everything behind it in what was read.
"""

from __future__ import annotations

import re
from typing import Any, Final

from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, Parser

SHORT: Final = 1 << 16
"""Bytes of a message that is put together of two reads by copying it; larger ones are left to the library."""
_MSG: Final = re.compile(rb"MSG ([!-~]+) ([0-9]{1,9}) (?:([!-~]+) )?([0-9]{1,9})\r\n")
"""As a broker writes it. The library takes other spellings too."""


class LinkParser(Parser):
    """Gives plain messages to ``hand`` of its client as they are read, and the rest to the library's own ways."""

    nc: Any
    buf: bytearray
    needed: int
    state: int

    async def parse(self, data: bytes = b"") -> None:
        """What was read, behind everything that was read before."""
        if self.state == AWAITING_MSG_PAYLOAD:
            missing = self.needed + CRLF_SIZE - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
            if not data:
                return
        if self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        at, hand, match = 0, self.nc.hand, _MSG.match
        while (found := match(data, at)) is not None:
            subject, sid, reply, size = found.groups()
            start = found.end()
            end = start + int(size)
            if end + CRLF_SIZE > len(data):
                if end - start > SHORT:
                    break
                self.buf.extend(data[at:])
                return
            try:
                if not hand(int(sid), subject, reply or b"", data[start:end]):
                    break
            except Exception as error:  # as the library does: one bad reader must not end the link of all
                await self.nc._error_cb(error)
            at = end + CRLF_SIZE
        if at < len(data):
            await super().parse(data[at:])
