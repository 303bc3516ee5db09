"""A process of a member that says what it got, handles nothing, and is there to be killed.

python -m tests.e2e.peer_child URL CREDS
"""

from __future__ import annotations

import asyncio
import sys

from sidecar.rails.messaging.peer import Peer
from tests.e2e.peers import text_of


async def main(url: str, creds: str) -> None:
    peer = await Peer.connect([url], creds, name="child")
    print("ready", flush=True)
    async for delivered in peer.deliveries():
        print(text_of(delivered), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
