"""Who may see the page, and who may change something: tokens, sessions, a proxy that names users. No I/O."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

Role = Literal["viewer", "operator"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)

SHORTEST: Final = 16
"""Characters of a token, at least."""

SESSION: Final = 12 * 3600
"""Seconds after which a person signs in again."""

COOKIE: Final = "apressure_session"

_LONGEST_NAME: Final = 200


class Identity(NamedTuple):
    """Who asks.

    Attributes:
        who: The name, for the log.
        role: What they may do.
        secret: What their CSRF token is made from.
        by_header: They have sent a token in this request themselves, which no other site can have a browser do.
    """

    who: str
    role: Role
    secret: str = ""
    by_header: bool = False


class Token(NamedTuple):
    """A token, and what it allows."""

    role: Role
    text: str


def read_tokens(text: str) -> tuple[Token, ...]:
    """Read tokens, one a line: `viewer TOKEN`, `operator TOKEN`, or a token alone, which is an operator's.

    Raises:
        ValueError: There is none, or one is short; the message shows none.
    """
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        role: Role = "operator"
        if len(words) == 2 and words[0] in ROLES:
            role = "viewer" if words[0] == "viewer" else "operator"
        elif len(words) != 1:
            raise ValueError(f"line {number} is neither a token nor a role and a token: write viewer TOKEN")
        if len(words[-1]) < SHORTEST or not words[-1].isascii():
            raise ValueError(f"the token in line {number} needs at least {SHORTEST} characters of ASCII")
        tokens.append(Token(role, words[-1]))
    if not tokens:
        raise ValueError("there is no token")
    return tuple(tokens)


@dataclasses.dataclass(frozen=True)
class Access:
    """Decides who may do what.

    Without tokens and without `trust_header`, everybody who can connect is let in, as `operator` where actions are
    allowed at all.

    Attributes:
        tokens: The tokens that are accepted.
        trust_header: The header in which a proxy names the user; "" for none.
        operators: The users of that header who are operators; the others are viewers.
        key: What sessions are signed with.
    """

    tokens: tuple[Token, ...] = ()
    trust_header: str = ""
    operators: frozenset[str] = frozenset()
    key: bytes = dataclasses.field(default=b"", repr=False)

    @classmethod
    def of(cls, tokens: Iterable[Token] = (), trust_header: str = "", operators: Iterable[str] = ()) -> Access:
        """Make it. Sessions live through a restart with the same tokens, and end when the tokens change."""
        accepted = tuple(tokens)
        if accepted:
            text = "\n".join(sorted(f"{token.role} {token.text}" for token in accepted))
            key = hashlib.sha256(b"apressure.web\0" + text.encode()).digest()
        else:
            key = secrets.token_bytes(32)
        return cls(accepted, trust_header.lower(), frozenset(operators), key)

    @property
    def open(self) -> bool:
        """Whether everybody is let in who can connect."""
        return not self.tokens and not self.trust_header

    def identify(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> Identity | None:
        """Return who asks; None for somebody who has to sign in."""
        if self.open:
            return Identity("local", "operator")
        if self.trust_header and (name := headers.get(self.trust_header, "")):
            name = name[:_LONGEST_NAME]
            return Identity(name, "operator" if name in self.operators else "viewer", name)
        if self.tokens and (authorization := headers.get("authorization")):
            return self._of_header(authorization)
        return self._of_session(cookies.get(COOKIE, "")) if self.tokens else None

    def sign_in(self, text: str) -> Token | None:
        """Return the token that somebody has typed in, if it is accepted."""
        found = None
        for token in self.tokens:  # all of them: the time says nothing
            if hmac.compare_digest(token.text.encode(), text.strip().encode(errors="replace")):
                found = token
        return found

    def session(self, token: Token, now: float | None = None) -> str:
        """Return the cookie of a session."""
        until = int((time.time() if now is None else now) + SESSION)
        told = {"role": token.role, "until": until, "id": secrets.token_hex(8)}
        payload = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
        return f"{payload}.{self._sign('session', payload)}"

    def csrf(self, identity: Identity | None) -> str:
        """Return the CSRF token for the forms of somebody."""
        return self._sign("csrf", "" if identity is None else f"{identity.who}\0{identity.secret}")

    def csrf_fits(self, identity: Identity | None, given: str) -> bool:
        """Whether a form came from a page of ours."""
        return hmac.compare_digest(self.csrf(identity).encode(), given.encode(errors="replace"))

    def _of_header(self, authorization: str) -> Identity | None:
        scheme, _, value = authorization.partition(" ")
        name = "token"
        if scheme.lower() == "basic":
            try:
                name, _, value = base64.b64decode(value, validate=True).decode().partition(":")
            except (binascii.Error, ValueError):
                return None
        elif scheme.lower() != "bearer":
            return None
        token = self.sign_in(value)
        if token is None:
            return None
        bearer = scheme.lower() == "bearer"
        return Identity(name[:_LONGEST_NAME] or "token", token.role, token.text, by_header=bearer)

    def _of_session(self, cookie: str) -> Identity | None:
        payload, dot, signature = cookie.rpartition(".")
        if not dot or not hmac.compare_digest(self._sign("session", payload).encode(), signature.encode()):
            return None
        told: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload))  # it is ours
        if told["until"] <= time.time():
            return None
        return Identity(f"session {told['id']}", told["role"], cookie)

    def _sign(self, what: str, text: str) -> str:
        message = f"{what}\0{text}".encode(errors="surrogateescape")
        return hmac.new(self.key, message, hashlib.sha256).hexdigest()
