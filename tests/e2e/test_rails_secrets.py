"""No seed, no creds and no text of a message leaves the processes of a space but to whom it is meant for.

A development set with traffic, hostile bytes and broken files: everything that anybody else could read of it is
searched for everything that is secret in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from sidecar.app.access import Access as Where
from sidecar.app.ep_access import calling
from sidecar.app.principals import local
from sidecar.base.secret import Secret
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.codes import CallError
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.names import Lifecycle, buckets, planes, subjects
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds, parse_creds, write_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.nkeys import ACCOUNT, OPERATOR, USER, decode_seed
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.canary import CANARY, leaks_in
from tests.e2e.cluster import Program, eventually
from tests.e2e.devset import SIDECAR, DevSet, dev_set
from tests.e2e.durable_reads import QUICK
from tests.e2e.peers import got, text_of
from tests.e2e.test_server_startup import listening_addresses

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL = Access((">",))
SPACES = ("main", "guarded")
TEXTS = {
    name: f"what-{name}-says-to-whom-it-is-meant-for".encode()
    for name in ("post", "message", "request", "forger", "argument")
}
ROLES = {b"SO": OPERATOR, b"SA": ACCOUNT, b"SU": USER}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevSet]:
    before = os.umask(0o022)  # as most people have it: the processes have to do better
    try:
        with dev_set(tmp_path_factory.mktemp("house") / "dev") as found:
            yield found
    finally:
        os.umask(before)


def secrets(root: Path) -> dict[str, bytes]:
    """Every secret below a directory, by its file, and every text of a message."""
    found = {f"text {name}": text for name, text in TEXTS.items()}
    for path in root.rglob("*.nk"):
        text = path.read_bytes()
        found[f"{path} (text)"] = text
        found[str(path)] = decode_seed(ROLES[text[:2]], Secret(text)).reveal()
    for path in root.rglob("*.creds"):
        creds = parse_creds(Secret(path.read_bytes()))
        found[f"{path} (token)"] = creds.token_text.reveal().rpartition(b".")[2]
        found[f"{path} (seed)"] = creds.key.seed_text().reveal()
    for path in (*root.rglob("*.ed25519"), *root.rglob("owners.key")):
        found[str(path)] = path.read_bytes()
    return found


def creds_of(running: DevSet, name: str) -> bytes:
    return Path(running.ready["nats"]["creds"][name]).read_bytes()


def processes(running: DevSet) -> list[int]:
    return [running.process.pid, *running.children()]


def told_by(running: DevSet) -> Iterator[tuple[str, bytes]]:
    """What others than their owner may come to read of the running processes."""
    yield "ready line", json.dumps(running.ready).encode()
    yield "ready file", (running.directory / "ready.json").read_bytes()
    yield "stderr", running.errors.read_bytes()
    for path in (running.directory / "log").iterdir():
        yield path.name, path.read_bytes()
    for path in (running.directory / "conf").iterdir():
        yield path.name, path.read_bytes()
    yield "broker configuration", (running.directory / "nats" / "nats-server.conf").read_bytes()
    for pid in processes(running):
        for name in ("cmdline", "environ", "comm"):
            yield f"{name} of {pid}", Path(f"/proc/{pid}/{name}").read_bytes()
    ready = json.loads((running.directory / "ready.json").read_bytes())
    for part in (ready, ready["delivery"]):
        for name in ("metrics_url", "health_url", "ready_url"):
            if name in part:
                yield f"{name} {part[name]}", fetched(part[name])
    for pid in processes(running):
        if b"-m\0sidecar\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            for port in sorted({int(one.partition(":")[2], 16) for one in listening_addresses(pid)}):
                for page in ("metrics", "healthz", "readyz", "nothing"):
                    yield f"{page} of {pid}", fetched(f"http://127.0.0.1:{port}/{page}")


def fetched(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.read()


def nothing_leaks(running: DevSet, more: str = "", also: Mapping[str, bytes] | None = None) -> None:
    wanted = {**secrets(running.directory), **(also or {})}
    assert len(wanted) > 60
    for name, told in (*told_by(running), ("log of the peers", more.encode())):
        assert not leaks_in(told, wanted), name


@contextlib.asynccontextmanager
async def peer(running: DevSet, space: str, name: str, said: io.StringIO) -> AsyncIterator[Peer]:
    nats = running.ready["nats"]
    creds = nats["spaces"][space]["creds"][name]
    log = Log(said)
    async with asyncio.timeout(20):
        made = await Peer.connect([nats["url"]], creds, name=name, policy=QUICK, metrics=Metrics(), log=log)
    try:
        yield made
    finally:
        await made.close(drain=0)


@contextlib.asynccontextmanager
async def intruder(running: DevSet, space: str) -> AsyncIterator[Connection]:
    """Somebody who may publish anything in the account of the space."""
    trust = SpaceTrust.open(running.directory / "nats" / "spaces" / space, space, os.urandom)
    key = new_user(os.urandom)

    async def mint() -> Credentials:
        now = int(time.time())
        return Credentials(format_creds(trust.mint("root", Permissions(ALL, ALL), key, now, 300), key), now + 300)

    async with asyncio.timeout(20):
        connection = await Connection.open([running.ready["nats"]["url"]], mint, policy=QUICK)
    async with connection:
        yield connection


async def talk(running: DevSet, space: str, said: io.StringIO) -> None:
    """One message of each kind, to its end."""
    async with (
        peer(running, space, "alice", said) as alice,
        peer(running, space, "bob", said) as bob,
        peer(running, space, "reviewer", said) as reviewer,
    ):
        await bob.join("general")
        await alice.post("general", TEXTS["post"].decode())
        await alice.tell(bob.identity.principal, TEXTS["message"].decode())
        await alice.ask_role("reviewer", TEXTS["request"].decode())
        seen = set()
        for reader, count in ((bob, 2), (reviewer, 1)):
            for _ in range(count):
                delivered = await got(reader)
                seen.add(text_of(delivered).encode())
                await delivered.handled()
        assert seen == {TEXTS["post"], TEXTS["message"], TEXTS["request"]}
        await spoil(running, space, bob)
        # Whoever reads on through the spoilt frames has seen them.
        await alice.tell(bob.identity.principal, "the last one")
        assert text_of(await got(bob)) == "the last one"


async def spoil(running: DevSet, space: str, victim: Peer) -> None:
    """Frames and rows that cannot be read, with a text in each that a careless reader would quote."""
    text = TEXTS["forger"].decode()
    owner, actor = victim.identity.principal.owner, victim.identity.principal.actor
    post = subjects.CHAT.build(space=space, owner=owner, actor=actor, channel="general")
    direct = subjects.INST.build(space=space, owner=owner, actor=actor, to_owner=owner, to_actor=actor)
    documents = [
        text.encode(),
        f'{{"{text}": 1, "{text}": 2}}'.encode(),
        orjson.dumps({"id": text, "from": {"id": text, "name": text}, "parts": text, "space": space}),
        orjson.dumps({"id": text, "from": {"id": f"{owner}.{actor}", "name": text}, "parts": [{"kind": text}]}),
    ]
    async with intruder(running, space) as connection:
        for document in documents:
            await connection.request(post, document, headers={"Nats-Msg-Id": os.urandom(8).hex()})
            await connection.request(direct, document, headers={"Nats-Msg-Id": os.urandom(8).hex()})
        life = victim.identity.lifecycle
        for bucket, key in (
            (buckets.PRESENCE, life.principal.dot),
            (buckets.ACL, f"{owner}.forger.{'0' * 26}"),
            (buckets.CHANNELS, "team.spoilt"),
            (buckets.ANYCAST, "reviewer.1"),
        ):
            for document in documents[:3]:
                await KeyValue(connection, bucket, space).put(key, document)


def counted(running: DevSet, name: str) -> float:
    """The sum of a metric of the delivery process over all its labels."""
    ready = json.loads((running.directory / "ready.json").read_bytes())
    text = fetched(ready["delivery"]["metrics_url"]).decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"sidecar_{name}{{"))


@pytest.mark.req("W9-17", "W9-18")
async def test_traffic_hostile_bytes_and_a_killed_plane_leak_nothing(running: DevSet) -> None:
    said = io.StringIO()
    for space in SPACES:
        await talk(running, space, said)
    await asyncio.to_thread(eventually, lambda: counted(running, "delivery_dropped_total") >= 2)
    await asyncio.to_thread(eventually, lambda: counted(running, "delivery_bad_rows_total") >= 2)
    assert "message_refused" in said.getvalue()
    nothing_leaks(running, said.getvalue())

    pid = json.loads((running.directory / "ready.json").read_bytes())["delivery"]["pid"]
    os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        ready = json.loads((running.directory / "ready.json").read_bytes())["delivery"]
        return bool(ready["pid"] != pid and fetched(ready["ready_url"]) == b"ok\n")

    await asyncio.to_thread(eventually, again)
    nothing_leaks(running)


def parts_of(running: DevSet) -> dict[str, int]:
    """The processes of endpoints, by the word that each has in its command line."""
    words = {word: word.encode() for word in ("registry", "bridge", "sidecar.app.sample:endpoint")}
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in running.children()}
    return {word: pid for word, text in words.items() for pid, line in lines.items() if text in line}


async def asked(running: DevSet, heard: list[str]) -> dict[str, bytes]:
    """Calls of every kind; what of them is told to nobody but the two who talk, by its name. ``heard`` are the subjects
    of the endpoint rails."""
    nats = running.ready["nats"]
    text = TEXTS["argument"].decode()
    async with calling(Where.of(nats["url"], Path(nats["creds"]["alice"])), 20.0) as alice:
        await alice.endpoints()
        assert await alice.call("dev.sidecar.sample", "echo", {"text": text}) == {"text": text}
        for args in ({"text": [text]}, {text: text}):
            with pytest.raises(CallError):
                await alice.call("dev.sidecar.sample", "add", args)
        with pytest.raises(CallError):
            await alice.call("dev.sidecar.coordinator", "objects", {"after": text})
    nonces = {one.rpartition(".")[2] for one in heard}
    generations = {one.split(".")[-2] for one in heard if one.startswith("cotal.main.ep.v1.one.registry.endpoints.")}
    assert len(nonces) > 4
    assert len(generations) == 1
    return {f"token {one}": one.encode() for one in nonces | generations}


async def spoil_records(running: DevSet, connection: Connection) -> None:
    """Rows and messages of the control surface that cannot be read, with a text in each."""
    instance = running.ready["nats"]["endpoints"][0]["instances"][0]["instance_id"]
    text = TEXTS["forger"].decode()
    token = {"endpoint": "dev_sidecar_forger", "instance": instance}
    keys = [
        *(buckets.RECORDS.subject("main", buckets.RECORD_SERVICE, **token, half=half) for half in ("spec", "status")),
        buckets.RECORDS.subject("main", buckets.RECORD_LIFECYCLE, owner="local", actor="forger"),
        buckets.RECORDS.subject("main", buckets.RECORD_GOVERN, endpoint="dev_sidecar_forger"),
        buckets.AUTH.subject("main", buckets.AUTH_ENDPOINT_GATE, **token),
        planes.CONTRACT.build(space="main", digest="ab" * 32),
        planes.EVENT.build(space="main", **token, epoch=0, topic="ev.dev_sidecar_sample.counted"),
        planes.RECORD_WRITE.build(
            space="main", **token, epoch=0, kind="svc", qualifier=f"dev_sidecar_forger.{instance}"
        ),
    ]
    for subject in keys:
        for document in (
            text.encode(),
            orjson.dumps({"state": text, text: text}),
            f'{{"{text}":1,"{text}":2}}'.encode(),
        ):
            await connection.request(subject, document)


@pytest.mark.req("W9-17", "W9-18")
async def test_calls_hostile_records_and_killed_endpoints_leak_nothing(running: DevSet) -> None:
    heard: list[str] = []
    before = parts_of(running)
    assert len(before) == 3
    async with intruder(running, "main") as connection:
        await connection.tap("cotal.main.ep.>", lambda message: heard.append(message.subject), lambda _: None)
        also = await asked(running, heard)
        await spoil_records(running, connection)
        also |= await asked(running, heard)  # through what is spoilt
    nothing_leaks(running, also=also)
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)

    def others() -> bool:
        now = parts_of(running)
        return len(now) == 3 and not set(before.values()) & set(now.values())

    await asyncio.to_thread(eventually, others)
    nothing_leaks(running, also=also)


@pytest.mark.req("W2-10", "W2-11")
async def test_whatever_the_processes_write_is_their_owners_alone(running: DevSet) -> None:
    kinds = {stat.S_IFREG: 0o077, stat.S_IFDIR: 0o077, stat.S_IFSOCK: 0o077}
    for path in (running.directory, *running.directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # the broker removes files as it goes
            mode = path.lstat().st_mode
            assert not stat.S_IMODE(mode) & kinds[stat.S_IFMT(mode)], path


async def ran(*arguments: str) -> tuple[int, str]:
    """A command to its end: its code and all that it said."""
    process = await asyncio.create_subprocess_exec(
        *SIDECAR, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return int(process.returncode or 0), out.decode()


async def answers_of(commands: list[list[str]]) -> list[tuple[int, str]]:
    """The commands to their ends, a few at a time."""
    at_once = asyncio.Semaphore(3)

    async def answer(arguments: list[str]) -> tuple[int, str]:
        async with at_once:
            return await ran(*arguments)

    return await asyncio.gather(*map(answer, commands))


async def test_commands_show_no_secret_whatever_they_meet(running: DevSet, tmp_path: Path) -> None:
    root = running.directory / "nats"
    nats = running.ready["nats"]
    alice = nats["spaces"]["main"]["principals"]["alice"]
    whole = creds_of(running, "alice")
    principal = f"{alice['owner']}.alice"
    account = SpaceTrust.open(root / "spaces" / "main", "main", os.urandom)
    key = new_user(os.urandom)
    files = {name: tmp_path / f"{name}.creds" for name in ("open", "spoilt", "twice", "ended", "longest")}
    files["open"].write_bytes(whole)
    for name, data in (("spoilt", whole[:-60]), ("twice", whole + whole), ("longest", whole * 40)):
        files[name].write_bytes(data)
        files[name].chmod(0o600)
    write_creds(files["ended"], account.mint("late", Permissions(), key, int(time.time()) - 600, 300), key)
    place = ["--root", str(root)]
    at = [*place, "--server", nats["url"]]
    doctor = ["doctor", *at, *(word for path in files.values() for word in ("--creds", str(path)))]
    asked: list[tuple[list[str], int]] = [
        (["space", "trust", *place], 0),
        (["space", "list", *place, "--json"], 0),
        (["space", "show", "main", *at, "--json"], 0),
        (["space", "limits", "--space", "main", *at, "--json"], 0),
        (["space", "backup-info", "--space", "main", *at], 0),
        (["principal", "list", "--space", "main", *place, "--json"], 0),
        (["principal", "show", principal, "--space", "main", *place], 0),
        (["principal", "creds", principal, "--space", "main", *place, "--json"], 0),
        (doctor, 2),
        ([*doctor, "--json"], 2),
        (["space", "show", "main", "--root", str(root), "--server", f"nats://ann:{CANARY.decode()}@127.0.0.1"], 2),
        (["doctor", "--monitor", f"http://ann:{CANARY.decode()}@127.0.0.1:1", *place], 1),
        (["principal", "show", CANARY.decode(), "--space", "main", *place, "--nothing"], 2),
    ]
    wanted = {**secrets(running.directory), "late": key.seed_text().reveal()}
    wanted["typed"] = CANARY
    answers = await answers_of([arguments for arguments, _ in asked])
    for (arguments, code), (ended, text) in zip(asked, answers, strict=True):
        assert ended == code, (arguments, text)
        assert "Traceback" not in text
        assert not leaks_in(text, wanted), arguments
    with_files = next(text for (arguments, _), (_, text) in zip(asked, answers, strict=True) if arguments == doctor)
    assert f"{files['open']} has mode 0644; run: chmod 600" in with_files
    assert "a creds file has one user token and then one user seed" in with_files


async def test_commands_of_messaging_show_no_secret_of_their_login(running: DevSet, tmp_path: Path) -> None:
    nats = running.ready["nats"]
    alice, whole = Path(nats["creds"]["alice"]), creds_of(running, "alice")
    files = {name: tmp_path / f"{name}.creds" for name in ("open", "spoilt", "ended")}
    for name, data, mode in (("open", whole, 0o640), ("spoilt", whole[:-60], 0o600)):
        files[name].write_bytes(data)
        files[name].chmod(mode)
    account = SpaceTrust.open(running.directory / "nats" / "spaces" / "main", "main", os.urandom)
    key, now = new_user(os.urandom), int(time.time())
    holder = Holder("main", Lifecycle(local("late"), "0" * 26), key.public, Form.COMPATIBLE)
    write_creds(files["ended"], account.issue(Profile.AGENT, holder, key, now - 600, 300), key)
    at, dev = ["--url", nats["url"], "--creds"], ["--dev", str(running.directory), "--as", "alice"]
    host = nats["url"].removeprefix("nats://")
    asked: list[tuple[list[str], int]] = [
        (["dm", "send", "bob", TEXTS["message"].decode(), *dev, "--json"], 0),
        (["peers", "--all", *at, str(alice)], 0),
        (["liveness", *at, str(alice), "--json"], 0),
        *((["peers", *at, str(path)], 4 if name == "ended" else 2) for name, path in files.items()),
        (["peers", "--link", f"cotal://ann:{CANARY.decode()}@{host}/main", "--creds", str(alice)], 2),
        (["peers", "--link", f"cotal://{CANARY.decode()}@{host}/main"], 2),
        (["peers", "--link", f"nats://{CANARY.decode()}@{host}/main", "--creds", str(alice)], 2),
        (["peers", "--url", f"nats://{CANARY.decode()}@{host}", "--creds", str(alice)], 2),
    ]
    wanted = {**secrets(running.directory), "late": key.seed_text().reveal(), "typed": CANARY}
    for (arguments, code), (ended, text) in zip(asked, await answers_of([one for one, _ in asked]), strict=True):
        assert ended == code, (arguments, text)
        assert "Traceback" not in text
        assert not leaks_in(text, wanted), arguments


@pytest.mark.parametrize("spoil", ["open", "garbage"])
async def test_a_lane_with_unsafe_keys_says_which_and_shows_nothing(
    running: DevSet, tmp_path: Path, spoil: str
) -> None:
    root = tmp_path / "root"
    (root / "spaces").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    shutil.copytree(running.directory / "nats" / "spaces" / "main", root / "spaces" / "main")
    seed = root / "spaces" / "main" / "signing.nk"
    if spoil == "open":
        seed.chmod(0o640)
    else:
        seed.write_bytes(CANARY + CANARY[:26])
    config = tmp_path / "delivery.json"
    config.write_text(
        json.dumps({"lanes": [{"space": "main", "url": running.ready["nats"]["url"], "root": str(root)}]})
    )
    config.chmod(0o600)
    program = Program(tmp_path / "delivery.log", "delivery", "--config", str(config))
    try:
        await asyncio.to_thread(
            eventually, lambda: any(one["event"] == "delivery_lane_ended" for one in program.lines())
        )
    finally:
        program.stop()
    wanted = {**secrets(running.directory), "garbage": CANARY}
    assert "signing.nk" in program.stderr
    assert not leaks_in(program.stderr, wanted)


async def test_no_reader_takes_creds_that_others_can_read(running: DevSet, tmp_path: Path) -> None:
    path = tmp_path / "alice.creds"
    path.write_bytes(creds_of(running, "alice"))
    path.chmod(0o604)
    with pytest.raises(ValueError, match="has mode 0604; run: chmod 600"):
        await Peer.connect([running.ready["nats"]["url"]], path, name="alice")


async def test_a_configuration_with_a_login_in_it_is_refused_unshown(tmp_path: Path) -> None:
    config = tmp_path / "delivery.json"
    for lane in (
        {"space": "main", "url": f"nats://ann:{CANARY.decode()}@127.0.0.1", "root": "x"},
        {"space": "main", "url": "nats://127.0.0.1", "root": "x", CANARY.decode(): 1},
    ):
        config.write_text(json.dumps({"lanes": [lane]}))
        code, text = await ran("delivery", "--config", str(config))
        assert code == 78
        assert "Traceback" not in text
    config.write_text(
        json.dumps({"lanes": [{"space": "main", "url": f"nats://ann:{CANARY.decode()}@127.0.0.1", "root": "x"}]})
    )
    assert not leaks_in((await ran("delivery", "--config", str(config)))[1], {"login": CANARY})
