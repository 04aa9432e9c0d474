from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture import shape
from tests.architecture.source import SRC

Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [
    shape.environment_reads,
    shape.private_third_party,
    shape.oversize,
    shape.vague_names,
    shape.inline_sql,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_source_tree_keeps_the_house_style(check: Check) -> None:
    assert check(SRC) == []


def _long_function(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("check", "file", "text"),
    [
        (shape.environment_reads, "app.py", "import os\nx = os.environ['A']"),
        (shape.environment_reads, "app.py", "import os as o\ndef f(): return o.getenv('A')"),
        (shape.environment_reads, "testing/crash.py", "from os import environ"),
        (shape.private_third_party, "adapters/a.py", "from pydantic_ai import _utils"),
        (shape.private_third_party, "adapters/a.py", "from pydantic_ai._utils import x"),
        (shape.private_third_party, "adapters/a.py", "import pydantic_ai._uuid"),
        (shape.private_third_party, "adapters/a.py", "import pydantic_ai as p\np.models._x()"),
        (shape.oversize, "engine/worker.py", _long_function(61)),
        (shape.oversize, "engine/worker.py", "x = 1\n" * 401),
        (shape.vague_names, "journal/utils.py", ""),
        (shape.vague_names, "journal/models/__init__.py", ""),
        (shape.vague_names, "journal/lease_manager.py", ""),
        (shape.vague_names, "journal/record.py", "class RecordBase: ..."),
        (shape.vague_names, "journal/record.py", "class A:\n    def encode_impl(self): ..."),
        (shape.inline_sql, "storage/sqlite.py", "q = 'SELECT 1'"),
        (shape.inline_sql, "storage/sqlite.py", "q = '''\n  insert into runs VALUES (1)'''"),
        (shape.inline_sql, "storage/sqlite.py", "def f(t): return f'DELETE FROM {t}'"),
    ],
)
def test_a_breach_is_named(
    package: Callable[[dict[str, str]], Path], check: Check, file: str, text: str
) -> None:
    (violation,) = check(package({file: text}))
    assert violation.startswith(f"{file}:")


def test_what_the_style_allows_passes(package: Callable[[dict[str, str]], Path]) -> None:
    root = package(
        {
            "cli/env.py": "import os\nkey = os.environ.get('KEY')",
            "testing/crash.py": "import os\nos._exit(1)",
            "adapters/a.py": "import pydantic_ai\nv = pydantic_ai.__version__",
            "engine/worker.py": _long_function(60) + "# \n" * 340,
            "retry.py": "def backoff(base): return base",
            "storage/sqlite.py": '"""CREATE what is missing."""\nq = "BEGIN IMMEDIATE"\n'
            'p = "PRAGMA user_version"\nm = "Select a run from the list"',
        }
    )
    assert [problem for check in CHECKS for problem in check(root)] == []
