from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure.adapters.pydantic_ai as adapter
from perdure.testing import scripted

assert adapter.__file__
assert scripted.__file__
FILES = [*Path(adapter.__file__).parent.glob("*.py"), Path(scripted.__file__)]


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _private(source: str) -> list[str]:
    return [
        name
        for name in _imported(source)
        if name.startswith("pydantic") and any(part[0] == "_" for part in name.split("."))
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_only_public_names_of_pydantic_ai_are_imported(file: Path) -> None:
    assert _private(file.read_text()) == []


def test_a_private_import_is_found() -> None:
    assert len(FILES) > 5
    assert _private("from pydantic_ai._utils import now_utc") == ["pydantic_ai._utils.now_utc"]
    assert _private("def f():\n    from pydantic_ai.durable_exec import _base")


def test_private_names_of_the_base_are_not_overridden() -> None:
    own = {name for name in vars(adapter.Durable) if name.startswith("_") and name[1] != "_"}
    bases = {name for base in adapter.Durable.__mro__[1:] for name in vars(base)}
    assert own & bases <= {"_abc_impl"}
