from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@lru_cache(maxsize=4)
def load_queries(dialect: str) -> dict[str, str]:
    """Return the named queries of a dialect, read from its `queries.sql`.

    A query begins with a line `-- name: …` and a sentence that says what it does.
    """
    text = files("perdure.storage").joinpath("sql", dialect, "queries.sql").read_text("utf-8")
    _, *parts = _NAME.split(text)
    return {
        name: _without_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def load_migrations(dialect: str) -> list[tuple[int, str]]:
    """Return the migrations of a dialect as (schema version, script), oldest first."""
    folder = files("perdure.storage").joinpath("sql", dialect)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    return [(int(name[:4]), folder.joinpath(name).read_text("utf-8")) for name in names]


def _without_comments(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().rstrip(";")
