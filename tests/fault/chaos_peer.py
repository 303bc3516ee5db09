"""A caller of another make that asks for large answers and never reads one.

python -m tests.fault.chaos_peer URL CREDS INBOX REPLIES REQUEST BODY NUMBER: ``REQUEST`` lacks the nonce. It says
``sent`` when the broker has everything, and stays connected without a look at its socket.
"""

from __future__ import annotations

import asyncio
import sys

from nats.aio.client import Client
from nats.aio.msg import Msg


async def main(url: str, creds: str, inbox: str, replies: str, request: str, body: str, number: int) -> None:
    client = Client()
    await client.connect(url, user_credentials=creds, allow_reconnect=False, inbox_prefix=inbox.encode())

    async def heard(message: Msg) -> None:
        raise AssertionError(f"read {message.subject}")

    await client.subscribe(replies, cb=heard)
    await client.flush()
    assert client._reading_task is not None
    client._reading_task.cancel()
    data = body.encode()
    for each in range(number):
        await client.publish(f"{request}{each:032x}", data)
    while client.pending_data_size:
        await client._flush_pending()
        await asyncio.sleep(0.01)
    print("sent", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    to, credentials, own, answers, asked, text, many = sys.argv[1:]
    asyncio.run(main(to, credentials, own, answers, asked, text, int(many)))
