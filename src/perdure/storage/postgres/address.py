from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from perdure.errors import InvalidUrl

DEFAULT_SCHEMA: Final = "perdure"

_PORTS: Final = 65536
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_UNNEST: Final = re.compile(r"\bunnest\((?:[^()]|\(\w+\))*\)")
_ARRAY: Final = re.compile(r"%\(\w+\)s::[a-z ]+\[\]")


class Address:
    """Where a PostgreSQL database is: what libpq makes of the URL, and the schema in it.

    `?schema=name` in the URL names the schema, `perdure` without; the rest is libpq's.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        self.schema = dict(options).get("schema", DEFAULT_SCHEMA)
        if not _SCHEMA.fullmatch(self.schema):
            raise InvalidUrl(
                f"{self.schema!r} cannot be the schema: it is up to 40 lowercase letters, digits"
                " and underscores, and begins with no digit"
            )
        rest = urlencode([pair for pair in options if pair[0] != "schema"], quote_via=quote)
        try:
            # Not put together from its parts, which would lose the slashes of a URL without a host.
            known: dict[str, Any] = conninfo_to_dict(f"{url.partition('?')[0]}?{rest}")
        except psycopg.Error as error:
            said = _without_password(" ".join(str(error).split()), parts)
            raise InvalidUrl(
                f"the URL is not one of PostgreSQL ({said}): write"
                " postgresql://user@host:5432/database"
            ) from None
        for port in str(known.get("port") or "").split(","):
            if port and not (port.isdecimal() and 0 < int(port) < _PORTS):
                # libpq would say so as often as a server that is not there is asked for.
                raise InvalidUrl(f"the port {port!r} is none: it is a number up to {_PORTS - 1}")
        known.setdefault("application_name", "perdure")
        known.setdefault("connect_timeout", 10)
        known.setdefault("keepalives_idle", 30)
        known.setdefault("tcp_user_timeout", 30_000)
        self.conninfo = make_conninfo(**known)
        host = known.get("host") or known.get("hostaddr") or "localhost"
        self.shown = f"{host}:{known.get('port') or 5432}/{known.get('dbname') or ''}"

    def statement(self, sql: str) -> bytes:
        """Return a statement as the server gets it: in this schema, and planned once.

        The server would plan a statement anew for each length of the arrays in it, which takes
        longer than the statement itself. It does not know the length of what a subquery returns.
        """
        once = re.sub(_UNNEST, lambda found: re.sub(_ARRAY, r"(SELECT \g<0>)", found[0]), sql)
        return self.named(once).encode()

    def named(self, sql: str) -> str:
        """Return a statement that names this schema."""
        if self.schema == DEFAULT_SCHEMA:
            return sql
        return re.sub(r"\bperdure\b(?=\.|;|$)", self.schema, sql)


def _without_password(said: str, parts: SplitResult) -> str:
    """Return what libpq says of a URL, which it may quote."""
    return said if not parts.password else said.replace(parts.password, "***")
