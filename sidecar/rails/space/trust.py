"""Keys and tokens on disk: one trust of a broker, and one account below it for each space (C9-02..C9-04).

Every seed is an owner-only file that is written once and never replaced. Tokens are made from the seeds and can be made
again, so a run that died anywhere is finished by the next one. The clock and the random source come in as arguments.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir, read_private, read_secret, write_private
from sidecar.base.secret import Secret
from sidecar.base.strictjson import SAFE_INTEGER
from sidecar.rails.space.broker_config import MAX_MINTED_JWT_BYTES
from sidecar.rails.space.claims import (
    MAX_ACCOUNT_BYTES,
    AccountClaims,
    AccountLimits,
    InvalidToken,
    Kind,
    OperatorClaims,
    Permissions,
    Token,
    UserClaims,
    decode,
    encode_account,
    encode_account_deletion,
    encode_operator,
    encode_user,
)
from sidecar.rails.space.grants import GrantRefused, check_life, permissions
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.nkeys import ACCOUNT, OPERATOR, SEED_CHARS, USER, InvalidNkey, KeyPair

Entropy = Callable[[int], bytes]

_OPERATOR_TOKEN, _SYSTEM_TOKEN, _ACCOUNT_TOKEN = "operator.jwt", "system.jwt", "account.jwt"
_ENDS: Final = "revocations.json"
_ENDS_BYTES: Final = 4 * 1024 * 1024
FOR_GOOD: Final = SAFE_INTEGER
"""Up to when the tokens of a key are void that is never used again, whatever the clock said when they were made."""
_PRUNE_SECONDS: Final = 3600
"""For how long a revocation outlives the tokens that it voids: more than clocks of one space differ."""
UNBOUNDED_ACCOUNT: Final = AccountLimits(memory_bytes=-1, disk_bytes=-1)


class TooManyRevocations(Exception):  # noqa: N818 - a state
    """An account's token holds no more revocations now. Those whose tokens have ended go an hour after that."""


class BrokerTrust:
    """The operator of one broker and its system account. Rotating it concerns every space of the broker (C9-04)."""

    def __init__(
        self, root: Path, operator: KeyPair, signing: KeyPair, system: KeyPair, system_signing: KeyPair
    ) -> None:
        self.root = root
        self.operator = operator.public
        self.system_account = system.public
        self.account_issuer = signing.public
        self._identity = operator
        self._signing = signing
        self._system_signing = system_signing

    @classmethod
    def open(cls, root: Path, entropy: Entropy) -> BrokerTrust:
        """The trust below ``root``; made when there is none. Raises UnsafeFile for files that cannot be used, and for
        a key that is missing of a trust that has made tokens: another one would be another trust."""
        ensure_private_dir(root)
        known = any((root / name).exists() for name in (_OPERATOR_TOKEN, _SYSTEM_TOKEN))
        with DirLock(root) as lock:
            return cls(
                root,
                _key_of(root / "operator.nk", OPERATOR, entropy, lock, known=known),
                _key_of(root / "operator-signing.nk", OPERATOR, entropy, lock, known=known),
                _key_of(root / "system.nk", ACCOUNT, entropy, lock, known=known),
                _key_of(root / "system-signing.nk", ACCOUNT, entropy, lock, known=known),
            )

    def operator_token(self, now: int) -> str:
        """The operator's own token, which the broker's configuration holds."""
        claims = OperatorClaims("sidecar", self.operator, self.system_account, (self._signing.public,))
        return self._kept("operator", claims, lambda: encode_operator(claims, self._identity, now))

    def system_account_token(self, now: int) -> str:
        """The token of the system account."""
        claims = AccountClaims("SYS", self.system_account, (self._system_signing.public,))
        return self._kept("account", claims, lambda: self.sign_account(claims, now))

    def _kept(self, kind: Kind, claims: OperatorClaims | AccountClaims, make: Callable[[], str]) -> str:
        path = self.root / (_OPERATOR_TOKEN if kind == "operator" else _SYSTEM_TOKEN)
        with DirLock(self.root) as lock:
            return _kept(path, _read_token(path, kind), claims, make, lock)

    def sign_account(self, claims: AccountClaims, now: int) -> str:
        """An account's token under this operator."""
        return encode_account(claims, self._signing, now)

    def sign_deletion(self, account: str, now: int) -> str:
        """The request that deletes one account from the resolver; the system account is never deleted."""
        if account == self.system_account:
            raise ValueError("the system account is not deleted")
        return encode_account_deletion([account], self._signing, now)

    def system_user(
        self, name: str, permissions: Permissions, key: KeyPair, now: int, seconds: int, tags: tuple[str, ...] = ()
    ) -> str:
        """The token of a user of the system account, ended after ``seconds``."""
        claims = UserClaims(name, key.public, self.system_account, permissions, tags)
        return encode_user(claims, self._system_signing, now, now + seconds)


class SpaceTrust:
    """The account of one space: its identity, the key that signs its users, and the token that the broker knows."""

    def __init__(self, directory: Path, space: str, identity: KeyPair, signing: KeyPair) -> None:
        self.directory = directory
        self.space = space
        self.account = identity.public
        self._signing = signing

    @classmethod
    def open(cls, directory: Path, space: str, entropy: Entropy) -> SpaceTrust:
        """The account in ``directory``; made when there is none. Raises UnsafeFile, also for a key that is missing of
        an account that has its token: with another one nobody of the space could log in."""
        ensure_private_dir(directory)
        known = (directory / _ACCOUNT_TOKEN).exists()
        with DirLock(directory) as lock:
            identity = _key_of(directory / "account.nk", ACCOUNT, entropy, lock, known=known)
            signing = _key_of(directory / "signing.nk", ACCOUNT, entropy, lock, known=known)
            return cls(directory, space, identity, signing)

    def account_token(self, trust: BrokerTrust, now: int, *, fresh: bool = False) -> str:
        """The account's token: the kept one with its revocations, or a new one.

        ``fresh`` makes a new one in any case: a broker that has deleted the account does not take the old one again.
        """
        with DirLock(self.directory) as lock:
            return self._token(trust, now, {}, lock, fresh=fresh)

    def revoke(
        self,
        trust: BrokerTrust,
        users: str | Collection[str],
        now: int,
        *,
        upto: int | None = None,
        ends: int | None = None,
    ) -> str:
        """The account's new token, in which every token that ``users`` got until ``upto`` (inclusive; by default the
        Unix time ``now``) is void.

        It is on disk before it is returned; the broker enforces it once it is pushed. ``ends`` is when the last token
        of these users ends by itself: an hour after that their revocation is left out of the next token that is made,
        so that the account's token stays small. Without it a revocation is kept for good. ``upto`` of the first kind is
        that end and of the second FOR_GOOD, by which another directory of the space tells them apart.
        Raises TooManyRevocations: nothing is void then that was not before.
        """
        named = (users,) if isinstance(users, str) else tuple(users)
        with DirLock(self.directory) as lock:
            kept_until = self._ends(named, ends, lock)
            over = {user for user, until in kept_until.items() if until + _PRUNE_SECONDS < now} - set(named)
            token = self._token(trust, now, dict.fromkeys(named, now if upto is None else upto), lock, over=over)
            if over:
                self._keep_ends({user: until for user, until in kept_until.items() if user not in over}, lock)
            return token

    def adopt(self, trust: BrokerTrust, known: str, now: int) -> bool:
        """Make the revocations one's own that the broker enforces and this directory does not know: another copy of it
        has written them, and the next token from here would take them back. False when there is none.

        ``known`` is the token that the broker holds; one that this trust has not signed says nothing. Raises
        UnsafeFile, TooManyRevocations.
        """
        try:
            token = decode(known, "account")
        except InvalidToken:
            return False
        told = token.claims
        if not isinstance(told, AccountClaims) or told.subject != self.account or token.issuer != trust.account_issuer:
            return False
        with DirLock(self.directory) as lock:
            kept = _read_token(self.directory / _ACCOUNT_TOKEN, "account")
            own = kept[1].claims.revocations if kept is not None and isinstance(kept[1].claims, AccountClaims) else {}
            fresh = {
                user: upto
                for user, upto in told.revocations.items()
                if upto > own.get(user, -1) and upto + _PRUNE_SECONDS >= now
            }
            if not fresh:
                return False
            ends = _read_ends(self.directory / _ENDS)
            # Void up to the end of its last token, or for good: nothing else is ever written (see ``revoke``).
            later = {user: max(upto, ends.get(user, 0)) for user, upto in fresh.items() if upto < FOR_GOOD}
            forgotten = {user for user, upto in fresh.items() if upto >= FOR_GOOD}
            self._keep_ends({user: end for user, end in (ends | later).items() if user not in forgotten}, lock)
            self._token(trust, max(now, token.issued_at + 1), fresh, lock)
        return True

    def _ends(self, users: tuple[str, ...], ends: int | None, lock: DirLock) -> dict[str, int]:
        """When the tokens of revoked users end, these included; what is not in it is kept for good. It is written
        before the token: a run that dies in between leaves a revocation that is kept too long, never one too short."""
        path = self.directory / _ENDS
        known = _read_ends(path)
        fresh = dict(known)
        kept = _read_token(self.directory / _ACCOUNT_TOKEN, "account")
        void = kept[1].claims.revocations if kept is not None and isinstance(kept[1].claims, AccountClaims) else {}
        for user in users:
            if ends is None:
                fresh.pop(user, None)
            elif user in known or user not in void:  # else it is void for good
                fresh[user] = max(ends, known.get(user, 0))
        if fresh != known:
            self._keep_ends(fresh, lock)
        return fresh

    def _keep_ends(self, ends: dict[str, int], lock: DirLock) -> None:
        write_private(self.directory / _ENDS, json.dumps(ends, sort_keys=True).encode("ascii"), lock=lock)

    def _token(
        self,
        trust: BrokerTrust,
        now: int,
        revoked: Mapping[str, int],
        lock: DirLock,
        *,
        fresh: bool = False,
        over: Collection[str] = (),
    ) -> str:
        path = self.directory / _ACCOUNT_TOKEN
        kept = _read_token(path, "account")
        revocations: dict[str, int] = {}
        if kept is not None and isinstance(kept[1].claims, AccountClaims):
            revocations |= kept[1].claims.revocations
            # Brokers of a cluster tell two tokens of one account apart by their second: never the same one twice.
            now_for_token = max(now, kept[1].issued_at + 1)
        else:
            now_for_token = now
        for user in over:
            revocations.pop(user, None)
        for user, upto in revoked.items():
            revocations[user] = max(upto, revocations.get(user, 0))
        claims = AccountClaims(self.space, self.account, (self._signing.public,), UNBOUNDED_ACCOUNT, revocations)
        if fresh or (kept is not None and kept[1].issuer != trust.account_issuer):
            kept = None  # the second case: the broker has another operator now
        return _kept(path, kept, claims, lambda: _bounded(trust.sign_account(claims, now_for_token)), lock)

    def issue(self, profile: Profile, holder: Holder, user: KeyPair, now: int, seconds: int) -> str:
        """The token of a static credential: name and tags say its principal, its rows come from the matrix (CB-119).

        The tags say its space, form, lifecycle and roles too, so that a client needs nothing else to know itself.
        Raises GrantRefused or InvalidName for what may not be granted.
        """
        if holder.space != self.space or holder.connection != user.public:
            raise GrantRefused("the holder is one of this space, and its inbox is named by its key (C9-12)")
        granted = permissions(profile, holder)
        name = holder.lifecycle.principal.dash
        return self.mint(name, granted, user, now, check_life(profile, seconds), holder.tags)

    def mint(
        self, name: str, permissions: Permissions, user: KeyPair, now: int, seconds: int, tags: tuple[str, ...] = ()
    ) -> str:
        """A user's token, signed by the account's signing key and ended after ``seconds``. Raises GrantRefused for one
        that would not fit into the line with which it is shown (C13.9-014)."""
        claims = UserClaims(name, user.public, self.account, permissions, tags)
        token = encode_user(claims, self._signing, now, now + seconds)
        if len(token) > MAX_MINTED_JWT_BYTES:
            raise GrantRefused(f"the token has {len(token)} bytes, allowed are {MAX_MINTED_JWT_BYTES} (C13.9-014)")
        return token


def _key_of(path: Path, role: int, entropy: Entropy, lock: DirLock, *, known: bool) -> KeyPair:
    """A key of a trust or account; ``known``: it was made before, and is never made again."""
    if known and not path.exists():
        raise UnsafeFile(path, "is missing; put it back from a backup, nothing can take its place")
    return kept_key(path, role, entropy, lock)


def kept_key(path: Path, role: int, entropy: Entropy, lock: DirLock) -> KeyPair:
    """The key of a seed file; one that is missing is made, and then never replaced. Raises UnsafeFile."""
    with contextlib.suppress(FileNotFoundError):
        return _read_key(path, role)
    write_private(path, KeyPair.generate(role, entropy).seed_text(), lock=lock, replace=False)
    return _read_key(path, role)


def _read_key(path: Path, role: int) -> KeyPair:
    text: Secret = read_secret(path, SEED_CHARS)
    try:
        return KeyPair.from_seed_text(role, text)
    except InvalidNkey as error:
        raise UnsafeFile(path, f"does not hold the seed that belongs there: {error}") from None
    finally:
        text.wipe()


def _read_ends(path: Path) -> dict[str, int]:
    """Raises UnsafeFile: a file that cannot be read never makes a revocation end."""
    try:
        value = json.loads(read_private(path, _ENDS_BYTES))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        if isinstance(error, UnsafeFile):
            raise
        value = None
    if not isinstance(value, dict) or not all(type(until) is int for until in value.values()):
        raise UnsafeFile(path, "does not say when revocations end; move it away to keep all of them for good")
    return value


def new_user(entropy: Entropy) -> KeyPair:
    """A fresh user key."""
    return KeyPair.generate(USER, entropy)


def _bounded(token: str) -> str:
    """A token that is too long is never written: no one could read it again."""
    if len(token) > MAX_ACCOUNT_BYTES:
        raise TooManyRevocations(
            f"the account's token would have {len(token)} bytes; at most {MAX_ACCOUNT_BYTES} are read"
        )
    return token


def _read_token(path: Path, kind: Kind) -> tuple[str, Token] | None:
    try:
        text = read_private(path, MAX_ACCOUNT_BYTES).decode("ascii")
        return text, decode(text, kind)
    except FileNotFoundError:
        return None
    except (InvalidToken, UnicodeDecodeError):
        raise UnsafeFile(path, "does not hold a token; move it away to have it made again") from None


def _kept(
    path: Path,
    kept: tuple[str, Token] | None,
    claims: OperatorClaims | AccountClaims,
    make: Callable[[], str],
    lock: DirLock,
) -> str:
    """The kept token when it says ``claims``; else a new one, written to ``path``."""
    if kept is not None and kept[1].claims == claims:
        return kept[0]
    token = make()
    write_private(path, token.encode("ascii"), lock=lock)
    return token
