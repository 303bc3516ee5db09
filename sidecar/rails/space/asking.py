"""One request to JetStream and its answer, for the steps of provisioning. The connection is the caller's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from nats.aio.client import Client

SECONDS: Final = 10.0
"""How long one answer is waited for."""


class BrokerRefused(Exception):  # noqa: N818 - what the broker said
    """JetStream refused a request; ``code`` is its error code, the message its own description."""

    def __init__(self, subject: str, error: Mapping[str, Any]) -> None:
        self.code = error.get("err_code")
        super().__init__(f"{subject}: {error.get('description', 'no description')} ({self.code})")


async def ask(
    client: Client,
    subject: str,
    body: Mapping[str, Any] | bytes | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """The answer as an object. Raises BrokerRefused, nats.errors.TimeoutError, nats.errors.NoRespondersError."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    reply = await client.request(subject, data, timeout=seconds, headers=None if headers is None else dict(headers))
    try:
        answer = json.loads(reply.data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise BrokerRefused(subject, {"description": "the answer is not JSON"})
    if isinstance(error := answer.get("error"), dict):
        raise BrokerRefused(subject, error)
    return answer
