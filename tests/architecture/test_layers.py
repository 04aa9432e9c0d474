from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture import layers
from tests.architecture.source import SRC, modules

Package = Callable[[dict[str, str]], Path]
CHECKS = [
    layers.unplaced,
    layers.layer_violations,
    layers.third_party_violations,
    layers.cycles,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_source_tree_keeps_the_layers(check: Callable[[Path], list[str]]) -> None:
    assert modules(SRC), f"no source under {SRC}"
    assert check(SRC) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("ids.py", "import perdure.clock"),
        ("errors.py", "from perdure import ids"),
        ("strict_json.py", "from perdure.errors import InvalidPayload"),
        ("retry.py", "from perdure.journal.record import Record"),
        ("fence.py", "from . import clock"),
        ("codec/writer.py", "from perdure import ids"),
        ("journal/replay.py", "from perdure.effects.receipt import Receipt"),
        ("journal/replay.py", "def f():\n    from perdure.session import tree"),
        ("effects/guard.py", "from ..journal import record"),
        ("session/codec/text.py", "from ...journal import record"),
        ("effects/guard.py", "import importlib\nimportlib.import_module('perdure.perform')"),
        ("session/run.py", "if TYPE_CHECKING:\n    from perdure.context import Context"),
        ("perform.py", "from perdure.engine.store import EngineStore"),
        ("context.py", "from perdure.storage.sqlite import open"),
        ("engine/worker.py", "import perdure.runtimes.embedded"),
        ("engine/worker.py", "from perdure import App"),
        ("storage/sqlite.py", "from perdure.engine.worker import Worker"),
        ("storage/sqlite.py", "from perdure.engine import Worker"),
        ("storage/sqlite.py", "from perdure.channels import stored"),
        ("storage/sqlite.py", "from perdure.storage.memory import Memory"),
        ("runtimes/temporal/worker.py", "from perdure.runtimes.embedded import Embedded"),
        ("adapters/__init__.py", "from perdure.adapters.mcp import Toolset"),
        ("adapters/mcp.py", "from perdure.app import App"),
        ("testing/scripted.py", "from perdure.receipts import guard"),
        ("blocking.py", "from perdure.app import App"),
        ("app.py", "from perdure.testing.scripted import Model"),
        ("app.py", "from perdure.cli import main"),
        ("cli/show.py", "from perdure.storage.sqlite import open"),
        ("server/api.py", "from perdure.cli.parser import build_parser"),
        ("server/api.py", "from perdure.engine.engine import Engine"),
        ("demo/agent.py", "from perdure.cli import main"),
        ("server/api.py", "from perdure.demo import turn"),
        ("sidecar/api.py", "from perdure.engine.engine import Engine"),
        ("server/api.py", "from perdure.runtimes.temporal import worker"),
        ("__main__.py", "from perdure.demo import turn"),
        ("__init__.py", "from perdure.cli import main"),
    ],
)
def test_an_import_across_a_wall_is_named(package: Package, file: str, line: str) -> None:
    named = ["errors", "ids", "clock", "journal/record", "session/tree", "channels/stored"]
    root = package({**{f"{name}.py": "" for name in named}, file: line})
    (violation,) = layers.layer_violations(root)
    assert violation.startswith(f"{file}:{len(line.splitlines())}: imports perdure")


def test_imports_that_respect_the_walls_pass(package: Package) -> None:
    root = package(
        {
            "__init__.py": "from perdure.app import App\nfrom perdure.errors import PerdureError",
            "errors.py": "import enum",
            "ids.py": "from perdure.errors import PerdureError",
            "canonical.py": "import perdure.errors",
            "codec/writer.py": "import perdure.canonical",
            "codec/reader.py": "from perdure.codec import writer",
            "journal/__init__.py": "from perdure.journal.record import Record",
            "journal/record.py": "from perdure import ids\nfrom . import replay\nimport msgspec",
            "journal/replay.py": "",
            "perform.py": "from perdure.journal.record import Record\nimport perdure.effects",
            "context.py": "from perdure.perform import perform",
            "engine/worker.py": "from perdure.engine import store\nimport perdure.context",
            "engine/store.py": "",
            "storage/rows.py": "import sqlite3\nfrom perdure.engine import store",
            "storage/sqlite.py": "from . import rows",
            "adapters/pydantic_ai/tools.py": "from . import names\nimport pydantic_ai, pydantic",
            "adapters/pydantic_ai/names.py": "import mcp",
            "testing/scripted.py": "import pydantic_ai.models, perdure.storage.rows",
            "app.py": "from perdure.blocking import run\nfrom perdure.storage.sqlite import open",
            "blocking.py": "import asyncio\nfrom perdure.engine.worker import Worker",
            "cli/__init__.py": "import rich\nfrom perdure import App, errors\nfrom . import show",
            "cli/show.py": "from perdure.engine.store import EngineStore\nimport perdure.app",
            "cli/demo.py": "def f():\n    from perdure.demo import agent",
            "cli/serve.py": "def f():\n    from perdure.server import app",
            "sidecar/app.py": "import temporalio, perdure.journal.record",
            "server/app.py": "import starlette, perdure.session.tree",
            "demo/agent.py": "import pydantic_ai, mcp, perdure.testing.scripted, perdure.context",
            "__main__.py": "from perdure.cli import show",
        }
    )
    assert [problem for check in CHECKS for problem in check(root)] == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"canonical.py": "import pydantic"}, "imports pydantic: no third party"),
        ({"journal/record.py": "def f():\n    import attrs"}, "imports attrs: no third party"),
        ({"effects/store.py": "import sqlite3"}, "SQL belongs to storage"),
        ({"engine/store.py": "from sqlite3 import Row"}, "SQL belongs to storage"),
        ({"app.py": "import rich"}, "imports rich: no third party"),
        ({"cli/show.py": "import click"}, "imports click: no third party"),
        ({"storage/postgres.py": "import psycopg, asyncpg"}, "asyncpg, psycopg: one third party"),
        (
            {"adapters/graph/a.py": "import langgraph", "adapters/graph/b.py": "import openai"},
            "perdure.adapters.graph: imports langgraph, openai",
        ),
    ],
)
def test_a_third_party_in_the_wrong_place_is_named(
    package: Package, files: dict[str, str], message: str
) -> None:
    (violation,) = layers.third_party_violations(package(files))
    assert message in violation


def test_a_new_top_level_file_must_be_placed(package: Package) -> None:
    (violation,) = layers.unplaced(package({"telemetry.py": "", "errors.py": ""}))
    assert "'telemetry' is in no layer; place it" in violation


def test_a_cycle_is_named_even_inside_a_function(package: Package) -> None:
    files = {
        "journal/a.py": "from perdure.journal import b",
        "journal/b.py": "def f():\n    from perdure.journal.a import g",
    }
    assert layers.cycles(package(files)) == [
        "perdure.journal.a -> perdure.journal.b -> perdure.journal.a"
    ]
