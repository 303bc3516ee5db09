"""The channel registry: strict to write, patient to read, and one resolution of what is in force."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from sidecar.rails.messaging.registry import (
    DEFAULTS_KEY,
    NOTHING_SAID,
    ChannelConfig,
    DeliveryClass,
    InvalidConfig,
    Registry,
    Unread,
    encode_config,
    read_config,
    read_registry,
    window_seconds,
)

LIVE, DURABLE = DeliveryClass.LIVE, DeliveryClass.DURABLE


def with_entries(**entries: Any) -> Registry:
    named = {DEFAULTS_KEY if key == "defaults" else key.replace("_", "."): value for key, value in entries.items()}
    return read_registry((key, json.dumps(value).encode()) for key, value in named.items())


@pytest.mark.req("C7-06")
@pytest.mark.parametrize(("own", "space"), list(itertools.product((None, True, False), repeat=2)))
def test_replay_is_the_channels_word_else_the_spaces_else_yes(own: bool | None, space: bool | None) -> None:
    registry = Registry(ChannelConfig(replay=space), {"c": ChannelConfig(replay=own)})
    wanted = own if own is not None else space if space is not None else True
    assert registry.effective("c").replay is wanted
    assert registry.effective("other").replay is (space if space is not None else True)


@pytest.mark.req("C7-07", "C0-07")
@pytest.mark.parametrize(("own", "space"), list(itertools.product((None, LIVE, DURABLE), repeat=2)))
def test_the_class_is_the_channels_word_else_the_spaces_else_durable(
    own: DeliveryClass | None, space: DeliveryClass | None
) -> None:
    registry = Registry(ChannelConfig(delivery_class=space), {"c": ChannelConfig(delivery_class=own)})
    assert registry.effective("c").delivery_class is (own or space or DURABLE)
    assert registry.effective("c.d").delivery_class is (space or DURABLE)


@pytest.mark.req("C7-07")
@pytest.mark.parametrize(
    ("own", "space", "wanted"), [(None, None, None), ("2m", "1d", 120), (None, "1d", 86_400), ("0s", "1d", 0)]
)
def test_the_window_is_the_channels_word_else_the_spaces_else_none(
    own: str | None, space: str | None, wanted: int | None
) -> None:
    registry = Registry(ChannelConfig(replay_window=space), {"c": ChannelConfig(replay_window=own)})
    assert registry.effective("c").window_seconds == wanted


@pytest.mark.req("C7-01")
def test_a_channel_without_an_entry_is_usable() -> None:
    assert Registry(NOTHING_SAID, {}).effective("any.channel") == (True, None, DURABLE)


def test_windows_are_seconds() -> None:
    assert [window_seconds(text) for text in ("7s", "7m", "7h", "7d")] == [7, 420, 25_200, 604_800]


@pytest.mark.req("C7-04")
@pytest.mark.parametrize("window", ["24 h", "1w", "", "h", "1.5h", "-1h", "1H", "1h\n", "\u0661h", 5])
def test_a_window_of_another_form_is_not_written(window: Any) -> None:
    with pytest.raises(InvalidConfig, match="replayWindow"):
        encode_config(ChannelConfig(replay_window=window))


@pytest.mark.req("C7-05")
def test_texts_that_are_too_long_are_refused_and_not_cut() -> None:
    encode_config(ChannelConfig(description="d" * 200, instructions="i" * 2_000))
    encode_config(ChannelConfig(description="\U0001f680" * 100))
    for config in (
        ChannelConfig(description="d" * 201),
        ChannelConfig(description="\U0001f680" * 101),
        ChannelConfig(instructions="i" * 2_001),
    ):
        with pytest.raises(InvalidConfig, match="more than"):
            encode_config(config)


@pytest.mark.parametrize(
    "config",
    [
        ChannelConfig(replay=1),  # type: ignore[arg-type]
        ChannelConfig(description=7),  # type: ignore[arg-type]
        ChannelConfig(delivery_class="fast"),  # type: ignore[arg-type]
        ChannelConfig(instructions="\ud800"),
    ],
)
def test_what_is_no_entry_is_not_written(config: ChannelConfig) -> None:
    with pytest.raises(InvalidConfig):
        encode_config(config)


def test_defaults_describe_nothing() -> None:
    assert encode_config(ChannelConfig(replay=False), defaults=True) == b'{"replay":false}'
    with pytest.raises(InvalidConfig):
        encode_config(ChannelConfig(description="x"), defaults=True)


def test_what_is_written_is_read_again() -> None:
    config = ChannelConfig(False, "24h", LIVE, "about", "be kind")
    assert json.loads(encode_config(config)) == {
        "replay": False,
        "replayWindow": "24h",
        "deliveryClass": "live",
        "description": "about",
        "instructions": "be kind",
    }
    assert read_config("c", encode_config(config)) == (config, [])
    assert read_config("c", encode_config(NOTHING_SAID)) == (NOTHING_SAID, [])


@pytest.mark.req("C7-02", "C7-03")
def test_entries_are_read_by_their_keys() -> None:
    registry = with_entries(team_backend={"deliveryClass": "live"}, defaults={"replay": False, "description": "x"})
    assert list(registry.channels) == ["team.backend"]
    assert registry.defaults == ChannelConfig(replay=False)
    assert registry.effective("team.backend") == (False, None, LIVE)


def test_one_bad_entry_decides_nothing_and_hides_nobody() -> None:
    registry = read_registry(
        [
            ("a", b"{"),
            ("b", b'{"replay":"yes","deliveryClass":"live","later":{"x":1}}'),
            ("c", b'{"replayWindow":"1w","instructions":7,"deliveryClass":["live"]}'),
            ("d/e", b"{}"),
            ("f", json.dumps({"description": "d" * 201}).encode()),
            (DEFAULTS_KEY, b"[]"),
        ]
    )
    assert registry.effective("b") == (True, None, LIVE)
    assert registry.effective("c") == (True, None, DURABLE)
    assert set(registry.unread) == {
        Unread("a", ""),
        Unread("b", "replay"),
        Unread("c", "replayWindow"),
        Unread("c", "instructions"),
        Unread("c", "deliveryClass"),
        Unread("d/e", ""),
        Unread("f", "description"),
        Unread(DEFAULTS_KEY, ""),
    }
