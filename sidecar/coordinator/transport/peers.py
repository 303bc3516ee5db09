"""Who is at the other end of a Unix socket, as the kernel says (W5-06, W5-09, P2-06)."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from sidecar.base.unixsocket import peer_ids
from sidecar.coordinator.authority.proof import ChannelBinding, uds_binding


class PeerRefused(Exception):  # noqa: N818 - an answer, not a mishap
    """The peer may not even try to log in; `reason` is the word of the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Peer:
    """Effective ids of the peer at its connect(2). pid is 0 when it lives in a pid namespace that we cannot see."""

    pid: int
    uid: int
    gid: int

    def check(self, owner: int) -> None:
        """Raises PeerRefused unless all three ids are authenticated and the user is the owner."""
        if self.pid <= 0:
            raise PeerRefused("peer_unknown", "the peer's process id is not visible here (another pid namespace)")
        if self.uid != owner:
            raise PeerRefused("peer_uid", f"the peer's uid is {self.uid}, not {owner}")

    def binding(self, server_nonce: bytes) -> ChannelBinding:
        """The channel binding of a handshake on this connection (W5-08)."""
        return uds_binding(server_nonce, self.uid, self.gid, self.pid)


def peer_of(fileno: int) -> Peer:
    """SO_PEERCRED of a connected Unix socket. Raises PeerRefused where the kernel does not tell."""
    handle = socket.socket(fileno=fileno)
    try:
        pid, uid, gid = peer_ids(handle)
    except (OSError, struct.error):
        raise PeerRefused("peer_unknown", "the kernel does not tell who the peer is") from None
    finally:
        handle.detach()
    return Peer(pid, uid, gid)
