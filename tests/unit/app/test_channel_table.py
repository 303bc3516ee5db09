"""The channels of a space as one credential has them."""

from __future__ import annotations

import pytest

from sidecar.app.channel_table import effective_text, row_of, rows
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.messaging.registry import ChannelConfig, DeliveryClass, Registry
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.holder import Form

LIFE = Lifecycle(Principal("local", "bob"), "b1" * 13)
BOB = Identity("main", Form.MEDIATED, LIFE, "U" * 56, (), ("general", "team.>"), ("general",), 1)
REGISTRY = Registry(
    ChannelConfig(replay_window="2h"),
    {"team.x": ChannelConfig(delivery_class=DeliveryClass.LIVE, description="x"), "other": ChannelConfig(replay=False)},
)


@pytest.mark.req("C4-17")
def test_membership_stands_apart_from_what_may_be_read() -> None:
    found = {row.name: row for row in rows(BOB, REGISTRY, ["team.y"])}
    assert list(found) == ["general", "other", "team.>", "team.x", "team.y"]
    assert [(row.member, row.readable, row.postable) for row in found.values()] == [
        (False, True, True),
        (False, False, False),
        (False, True, False),
        (False, True, False),
        (True, True, False),
    ]
    assert found["team.>"].effective is None
    assert found["team.x"].config.description == "x"
    assert row_of("team.y", BOB, REGISTRY, None).member is None


def test_what_is_in_force_is_said_in_words() -> None:
    assert effective_text(REGISTRY.effective("team.x")) == {"class": "live", "replay": "on", "window": "7200 s"}
    assert effective_text(REGISTRY.effective("other")) == {"class": "durable", "replay": "off", "window": "-"}
    assert effective_text(Registry(ChannelConfig(), {}).effective("a"))["window"] == "all that is kept"
