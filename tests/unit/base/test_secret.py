"""Secrets show nothing, wherever they end up."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from tests.canary import CANARY, spellings_in

SECRET = Secret(CANARY)
KEY = SigningKey(Secret(CANARY))


@pytest.mark.req("W9-17", "W10-10")
@pytest.mark.parametrize("holder", [SECRET, KEY, [SECRET], {"key": KEY}, (KEY, SECRET)], ids=repr)
def test_no_text_form_shows_it(holder: object) -> None:
    shown = f"{holder!r} {holder!s} {holder} {holder:}" if not isinstance(holder, list | dict | tuple) else repr(holder)
    assert not spellings_in(shown)


@pytest.mark.req("W9-17")
def test_format_specs_show_nothing() -> None:
    for spec in ("", "s", ">40", "x"):
        assert format(SECRET, spec) == "<secret>"


@pytest.mark.req("W9-17")
@pytest.mark.parametrize(
    "leak",
    [
        pickle.dumps,
        lambda secret: pickle.dumps(secret, 0),
        lambda secret: pickle.dumps(secret, 1),
        lambda secret: pickle.dumps(secret, 5),
        copy.copy,
        copy.deepcopy,
        json.dumps,
        lambda secret: bytes(secret),
        lambda secret: secret.__getstate__(),
        hash,
        iter,
        lambda secret: vars(secret),
        lambda secret: memoryview(secret),
    ],
    ids=[
        "pickle",
        "pickle 0",
        "pickle 1",
        "pickle 5",
        "copy",
        "deepcopy",
        "json",
        "bytes",
        "state",
        "hash",
        "iter",
        "vars",
        "buffer",
    ],
)
@pytest.mark.parametrize("holder", [SECRET, KEY], ids=["secret", "key"])
def test_no_serial_form_exists(leak: Callable[[object], object], holder: object) -> None:
    if holder is KEY and leak is hash:
        return  # a key hashes by identity
    with pytest.raises(TypeError) as refused:
        leak(holder)
    assert not spellings_in(str(refused.value))


@pytest.mark.req("W9-17", "W10-10")
def test_logs_and_tracebacks_show_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(secret: Secret, key: SigningKey) -> None:
        logging.getLogger("sidecar.test").error("using %s and %r", secret, key)
        raise RuntimeError(f"with {secret} and {key}")

    with caplog.at_level(logging.DEBUG), pytest.raises(RuntimeError) as failed:
        fail(SECRET, KEY)
    # capture_locals prints the repr of every local variable: the worst crash reporter there is.
    report = "".join(traceback.TracebackException.from_exception(failed.value, capture_locals=True).format())
    assert "<secret>" in report
    assert not spellings_in(report)
    assert not spellings_in(caplog.text)


@pytest.mark.req("W9-17", "W10-10", "P2-13")
def test_a_crashing_process_shows_nothing() -> None:
    code = (
        "import sys, os; from sidecar.base.secret import Secret; from sidecar.base.ed25519 import SigningKey\n"
        "seed = Secret(sys.stdin.buffer.read()); key = SigningKey(seed); key.sign(b'x')\n"
        "print(seed, key, vars().get('seed')); raise SystemError(f'{seed} {key!r} {[seed]}')"
    )
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], input=CANARY, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"SystemError" in done.stderr
    assert not spellings_in(done.stdout + done.stderr)


@pytest.mark.req("W2-05")
def test_equality() -> None:
    assert Secret(b"abc") == Secret(bytearray(b"abc"))
    assert Secret(b"abc") != Secret(b"abd")
    assert Secret(b"abc") != Secret(b"abcd")
    assert Secret(b"abc") != b"abc"


def test_reveal_and_length() -> None:
    assert Secret(b"abc").reveal() == b"abc"
    assert len(Secret(memoryview(b"abcd"))) == 4


def test_adopting_takes_the_buffer_itself_and_wiping_clears_it() -> None:
    buffer = bytearray(CANARY)
    secret = Secret.adopt(buffer)
    secret.wipe()
    assert buffer == bytes(len(CANARY))
    secret.wipe()
    with pytest.raises(ValueError, match="wiped"):
        secret.reveal()
    assert secret != Secret(bytes(len(CANARY)))
    assert secret != secret
