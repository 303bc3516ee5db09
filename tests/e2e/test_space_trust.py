"""Our operator, accounts and users as a real nats-server sees them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import nats.errors
import pytest

from sidecar.rails.space.claims import (
    Access,
    AccountClaims,
    Permissions,
    UserClaims,
    decode,
    encode_account,
    encode_account_deletion,
    encode_user,
    trusted_user,
)
from sidecar.rails.space.nkeys import ACCOUNT, OPERATOR, KeyPair
from sidecar.rails.space.resolver import ResolverRefused, delete_account, push_account
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker

pytestmark = pytest.mark.asyncio


def clock() -> int:
    return int(time.time())


class Account:
    """One space at the broker, with a minter of users."""

    def __init__(self, broker: SpaceBroker, name: str = "main") -> None:
        self.broker = broker
        self.trust = SpaceTrust.open(broker.directory / name, name, os.urandom)

    async def push(self, *, fresh: bool = False) -> str:
        token = self.trust.account_token(self.broker.trust, clock(), fresh=fresh)
        await self.broker.push(token)
        return token

    def mint(
        self,
        publish: Access,
        subscribe: tuple[str, ...] = (),
        *,
        key: KeyPair | None = None,
        at: int | None = None,
        seconds: int = 300,
    ) -> tuple[Path, str, KeyPair]:
        """Creds file, inbox filter and key of a user."""
        key = key or new_user(os.urandom)
        inbox = f"_INBOX_{key.public}.>"
        permissions = Permissions(publish, Access((inbox, *subscribe)))
        token = self.trust.mint("local-alice", permissions, key, at or clock(), seconds)
        return self.broker.creds(token, key), inbox, key


@pytest.mark.req("C9-01")
async def test_nobody_without_a_credential_is_let_in(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            async with broker.user(None, "_INBOX_nobody.>"):
                pass


@pytest.mark.req("C9-02")
async def test_a_user_works_within_its_grants_and_nowhere_else(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        account = Account(broker)
        account_token = await account.push()
        creds, inbox, _ = account.mint(Access(("in.*", "deep.>"), ("deep.secret",)), ("out.>",))
        token = next(line for line in creds.read_text().splitlines() if line.startswith("eyJ"))
        assert trusted_user(
            decode(token, "user"),
            decode(account_token, "account"),
            decode(broker.trust.operator_token(clock()), "operator"),
        )
        async with broker.user(creds, inbox) as user:
            assert await user.may_publish("in.a")
            assert await user.may_publish("deep.a.b")
            assert not await user.may_publish("in.a.b")
            assert not await user.may_publish("deep.secret")
            assert not await user.may_publish("out.a")
            assert await user.may_subscribe("out.a")
            assert await user.may_subscribe(inbox)
            assert not await user.may_subscribe("in.a")
            assert not await user.may_subscribe(">")
            assert not await user.may_subscribe(f"_INBOX_{broker.trust.operator}.>")


@pytest.mark.req("C9-03", "C1-01")
async def test_two_spaces_share_a_broker_and_nothing_else(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        first, second = Account(broker, "first"), Account(broker, "second")
        tokens = [decode(await account.push(), "account") for account in (first, second)]
        assert tokens[0].issuer == tokens[1].issuer
        assert tokens[0].claims.subject != tokens[1].claims.subject
        everything = Access(("cotal.>",))
        here, there = (account.mint(everything, ("cotal.>",)) for account in (first, second))
        async with broker.user(here[0], here[1]) as sender, broker.user(there[0], there[1]) as other:
            own = await sender.client.subscribe("cotal.>")
            foreign = await other.client.subscribe("cotal.>")
            await sender.violations()
            await other.violations()
            await sender.client.publish("cotal.main.x", b"1")
            assert (await own.next_msg(EVENT_SECONDS)).data == b"1"
            await other.client.publish("cotal.main.y", b"2")  # what comes first would be the foreign message
            assert (await foreign.next_msg(EVENT_SECONDS)).data == b"2"


async def test_an_expired_user_is_refused_and_an_expiring_one_is_cut(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        account = Account(broker)
        await account.push()
        late, inbox, _ = account.mint(Access(("a",)), at=clock() - 60, seconds=30)
        with pytest.raises(nats.errors.Error, match=r"(?i)auth"):
            async with broker.user(late, inbox):
                pass
        short, inbox, _ = account.mint(Access(("a",)), seconds=3)
        async with broker.user(short, inbox) as user:
            await asyncio.wait_for(user.closed.wait(), EVENT_SECONDS)
            assert "expired" in str(user.client.last_error).lower()


@pytest.mark.req("C9-44")
async def test_a_revoked_user_is_cut_and_stays_out_while_others_stay(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        account = Account(broker)
        await account.push()
        creds, inbox, key = account.mint(Access(("a",)))
        other, other_inbox, _ = account.mint(Access(("a",)))
        async with broker.user(creds, inbox) as user, broker.user(other, other_inbox) as stays:
            await broker.push(account.trust.revoke(broker.trust, key.public, clock()))
            await asyncio.wait_for(user.disconnected.wait(), EVENT_SECONDS)
            assert await stays.may_publish("a")
        with pytest.raises(nats.errors.Error, match=r"(?i)auth"):
            async with broker.user(creds, inbox):
                pass
        # The kept token has the revocation: opening the space again and pushing does not undo it.
        again = SpaceTrust.open(broker.directory / "main", "main", os.urandom)
        await broker.push(again.account_token(broker.trust, clock()))
        with pytest.raises(nats.errors.Error, match=r"(?i)auth"):
            async with broker.user(creds, inbox):
                pass


async def test_a_deleted_account_is_gone_until_it_is_pushed_again(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        account = Account(broker)
        await account.push()
        creds, inbox, _ = account.mint(Access(("a",)))
        async with broker.user(creds, inbox) as user:
            await broker.delete(account.trust.account)
            await asyncio.wait_for(user.disconnected.wait(), EVENT_SECONDS)
        with pytest.raises(nats.errors.Error, match=r"(?i)auth"):
            async with broker.user(creds, inbox):
                pass
        await account.push(fresh=True)
        async with broker.user(creds, inbox) as user:
            assert await user.may_publish("a")


async def test_accounts_outlive_a_killed_broker(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        account = Account(broker)
        await account.push()
        creds, inbox, _ = account.mint(Access(("a",)))
        broker.kill()
        broker.start()
        async with broker.user(creds, inbox) as user:
            assert await user.may_publish("a")


@pytest.mark.req("C9-04")
async def test_the_broker_takes_accounts_from_its_own_operator_only(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        system = (await broker.system()).client
        stranger, account = KeyPair.generate(OPERATOR, os.urandom), KeyPair.generate(ACCOUNT, os.urandom)
        with pytest.raises(ResolverRefused, match="not trusted"):
            await delete_account(system, encode_account_deletion([account.public], stranger, clock()))
        # A full resolver keeps whatever is well-formed, but nobody enters an account that the operator did not sign.
        await push_account(system, encode_account(AccountClaims("x", account.public), stranger, clock()))
        key = new_user(os.urandom)
        claims = UserClaims("local-mallory", key.public, account.public, Permissions(Access(("a",)), Access(("a",))))
        creds = broker.creds(encode_user(claims, account, clock(), clock() + 60), key)
        with pytest.raises(nats.errors.Error, match=r"(?i)auth"):
            async with broker.user(creds, "_INBOX_x.>"):
                pass
        with pytest.raises(ValueError, match="system account"):
            broker.trust.sign_deletion(broker.trust.system_account, clock())


@pytest.mark.req("C9-13")
async def test_a_user_without_grants_of_its_own_gets_nothing(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        account = Account(broker)
        token = await account.push()
        claims = decode(token, "account").claims
        assert isinstance(claims, AccountClaims)
        assert not claims.default_permissions.publish.allow
        creds, inbox, key = account.mint(Access(deny=(">",)))
        decoded = decode(next(line for line in creds.read_text().splitlines() if line.startswith("eyJ")), "user")
        assert isinstance(decoded.claims, UserClaims)
        assert decoded.claims.subject == key.public
        async with broker.user(creds, inbox) as user:
            assert not await user.may_publish("a")
            assert not await user.may_publish("$JS.API.INFO")
            assert not await user.may_subscribe("a")


@pytest.mark.req("C9-04", "CB-92")
async def test_the_pusher_holds_no_other_system_right(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        system = await broker.system()
        assert not await system.may_publish("$SYS.REQ.SERVER.PING")
        assert not await system.may_subscribe("$SYS.>")
