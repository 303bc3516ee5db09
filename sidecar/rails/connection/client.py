"""The client library, with what it does not tell, and without what a message of ours does not need.

It goes the library's own way but for three things: it reports every error of the broker as it comes, it never goes on
in plaintext where TLS is needed, and it knows a short way in and out for plain messages. The short ways reach into the
library. They do what it does, byte for byte, and whatever is not plain is left to it; tests hold both to each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.rails.connection.parser import LinkParser
from sidecar.rails.names import headers as names

EASY: Final = 1 << 20
"""Bytes waiting for the socket. With fewer the library takes a publish without waiting; its bound is twice that."""
_KNOWN: Final = {name.encode(): name for name in names.KNOWN}
_NAMES: Final = frozenset(names.KNOWN)

Take = Callable[[Msg], None]


class OldBroker(nats.errors.Error):
    """Raised inside the login, before anything secret is sent."""


class Plaintext(nats.errors.Error):
    """Raised on the greeting of a broker, before anything is sent."""


def _plain(text: str) -> bool:
    """Whether the library would pass a text on as it is, in a subject and in the value of a header."""
    return text.isascii() and text.isprintable() and " " not in text and text != ""


class LinkClient(Client):
    """One client. ``said`` hears each error of the broker: a closed socket may overtake it in ``last_error``."""

    said: Callable[[str], None]
    needs_tls = False

    def __init__(self) -> None:
        super().__init__()
        self._takes: dict[int, Take] = {}
        self._ps = LinkParser(self)

    # ---- what is told ----

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # The library goes on in plaintext when a broker says that TLS is not required, whatever it was told itself.
        if self.needs_tls and initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise Plaintext("the broker does not offer TLS, which this connection needs")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        self.said(err_msg)
        await super()._process_err(err_msg)

    # ---- the short way out ----

    def offer(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> bool:
        """Take a message into the output, if that needs no waiting and all of it is plain. False: nothing was done, and
        ``publish`` does it or says why not."""
        flusher, wakes, size = self._flusher_task, self._flush_queue, len(data)
        if self._status != Client.CONNECTED or flusher is None or flusher.done() or wakes is None:
            return False
        if size > self._max_payload or self._pending_data_size + size > EASY:
            return False
        if not _plain(subject) or (reply and not _plain(reply)):
            return False
        if headers is None:
            head = f"PUB {subject} {reply} {size}\r\n"
        else:
            lines = "NATS/1.0\r\n"
            for name, value in headers.items():
                if name not in _NAMES or not _plain(value):
                    return False
                lines += f"{name}: {value}\r\n"
            length = len(lines) + 2
            head = f"HPUB {subject} {reply} {length} {length + size}\r\n{lines}\r\n"
        command = b"%b%b\r\n" % (head.encode(), data)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size
        self._pending.append(command)
        self._pending_data_size += len(command)
        if wakes.empty():
            wakes.put_nowait(asyncio.get_running_loop().create_future())
        return True

    # ---- the short way in ----

    def deliver(self, sid: int, take: Take) -> None:
        """Hand the messages of a subscription to ``take`` as they are read, and not by way of a queue and a task."""
        self._takes[sid] = take

    async def leave(self, sid: int) -> None:
        """Tell the broker that no more is wanted; what comes is still delivered."""
        await self._send_unsubscribe(sid)

    async def leave_all(self) -> None:
        """:meth:`leave` for every subscription."""
        for sid in list(self._subs):
            await self._send_unsubscribe(sid)

    def hand(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Hand one message over; False: nothing was done, and the library is to queue it. Raises what ``take`` does."""
        take, placed = self._takes.get(sid), self._subs.get(sid)
        # What came before its subscription was known here is in the queue, and first.
        if take is None or placed is None or not placed._pending_queue.empty():
            return False
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        placed._received += 1
        take(Msg(self, subject.decode(), reply.decode(), data, headers, None, False, sid))  # type: ignore[arg-type]
        return True

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        found = await self._process_headers(headers) if headers and sid in self._takes else None
        try:
            handed = self.hand(sid, subject, reply, data, found)
        except Exception as error:  # as the library does: one bad reader must not end the link of all
            await self._error_cb(error)
            return
        if not handed:
            await super()._process_msg(sid, subject, reply, data, headers)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        self._takes.pop(sid, None)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As the library reads them, without its look at every letter of the names that a broker and we use."""
        found: dict[str, str] = {}
        for line in raw.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            known = _KNOWN.get(name)
            if known is not None and colon:
                text = value.strip().decode("utf-8", "replace")
                # A stream that stored the answer to a Direct Get gives it with two of these, its own behind the other.
                found[known] = f"{found[known]},{text}" if known == names.STREAM and known in found else text
            elif line:
                found.update(Client._parse_header_lines(line))
        return found
