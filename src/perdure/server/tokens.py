from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jwt
import msgspec

from perdure.clock import Clock, SystemClock
from perdure.errors import InvalidOptions
from perdure.server.grants import Grant

_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "perdure"
_SECRET_BYTES: Final = 32
_CLAIMS: Final = ("exp", "iat", "sub", "aud", "sessions", "write")


class SignedTokens:
    """Issues tokens and knows them again by their signature: JSON Web Tokens under HS256.

    Every server with the same secret knows the tokens of the others; a token is good until it
    expires, since nothing is stored of it. As `authorize` of a server it returns what a token
    grants. Raises `InvalidOptions` for a secret of less than 32 bytes.
    """

    def __init__(self, secret: bytes, *, clock: Clock | None = None) -> None:
        if len(secret) < _SECRET_BYTES:
            raise InvalidOptions(
                f"the secret of tokens has {len(secret)} bytes: take {_SECRET_BYTES} random ones or"
                " more, such as those of `openssl rand -hex 32`"
            )
        self._secret = secret
        self._clock = clock or SystemClock()

    def issue(
        self,
        client_id: str,
        sessions: Sequence[str],
        *,
        expires_seconds: float,
        write: bool = True,
    ) -> str:
        """Return a token for a client, good for these sessions from now on.

        Names of sessions may be patterns, so a name that a user chose has no `*`, `?` or `[`.
        Raises `InvalidOptions` for an empty name, no session, and a time that is over at once.
        """
        if not client_id:
            raise InvalidOptions("the name of the token's client is empty: say who holds it")
        if not sessions or not all(sessions):
            raise InvalidOptions(
                "a token is for one session or more, and none of their names is empty"
            )
        if expires_seconds <= 0:
            raise InvalidOptions(f"a token is good for more than {expires_seconds} seconds")
        now = int(self._clock.now())
        claims: dict[str, Any] = {
            "aud": _AUDIENCE,
            "sub": client_id,
            "iat": now,
            "exp": now + expires_seconds,
            "sessions": list(sessions),
            "write": write,
        }
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def __call__(self, token: str) -> Grant | None:
        """Return what a token grants, or None if it is forged, malformed or has expired."""
        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=[_ALGORITHM],
                audience=_AUDIENCE,
                options={"require": list(_CLAIMS)},
            )
            return msgspec.convert({**claims, "client_id": claims["sub"]}, type=Grant)
        except (jwt.InvalidTokenError, msgspec.ValidationError):
            return None
