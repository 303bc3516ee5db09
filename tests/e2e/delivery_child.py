"""One run of the durable half of a delivery plane in a process that can be killed.

python -m tests.e2e.delivery_child URL CREDS ACK_WAIT_MS
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from sidecar.base.secret import Secret
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.planes.delivery import broker
from sidecar.rails.planes.delivery.backstop import Backstop
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Form
from tests.e2e.durable_reads import QUICK, life
from tests.e2e.space_members import SPACE


async def main(url: str, creds: Secret) -> None:
    async def mint() -> Credentials:
        return Credentials(creds, time.time() + 300)

    async with await Connection.open([url], mint, policy=QUICK) as connection:
        backstop = Backstop(Plane(connection, SPACE, Form.MEDIATED, life("delivery")))
        await backstop.run()


if __name__ == "__main__":
    setattr(broker, "ACK_WAIT_MS", int(sys.argv[3]))  # noqa: B010 - a figure that only tests change
    asyncio.run(main(sys.argv[1], Secret(Path(sys.argv[2]).read_bytes())))
