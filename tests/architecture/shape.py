"""The house style that a linter does not know, as checks over a package folder."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import PACKAGE, Module, modules

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400

_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
_VAGUE_FILES = {"models", "utils", "common"}
_VAGUE_CLASS = re.compile(r"(Manager|Helper|Util|Base|Impl)s?$")
_VAGUE_SNAKE = re.compile(r"(^|_)(manager|helper|util|base|impl)s?$")
_SQL = re.compile(
    r"\s*(?:(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|REPLACE|WITH)\s"
    r"|(?i:insert\s+(or\s+\w+\s+)?into\s|update\s+\w+\s+set\s|delete\s+from\s"
    r"|(create|alter|drop)\s+(temp\s+|unique\s+)?(table|index|view|trigger|schema)\s))"
)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def environment_reads(root: Path) -> list[str]:
    """Name each use of the process environment outside `cli`."""
    message = "reads the environment: only cli does, and passes it on"
    found: list[str] = []
    for module in modules(root):
        if module.parts[1:2] == ["cli"]:
            continue
        for node in module.nodes:
            match node:
                case ast.Attribute(value=ast.Name(), attr=name) if name in _ENVIRONMENT:
                    found.append(module.at(node, message))
                case ast.ImportFrom(module="os", names=names) if any(
                    alias.name in _ENVIRONMENT for alias in names
                ):
                    found.append(module.at(node, message))
                case _:
                    pass
    return found


def private_third_party(root: Path) -> list[str]:
    """Name each private module or name that is taken from another distribution."""
    found: list[str] = []
    for module in modules(root):
        aliases: set[str] = set()
        for node in module.nodes:
            taken: list[str] = []
            if isinstance(node, ast.Import):
                taken = [alias.name for alias in node.names]
                aliases |= {
                    alias.asname or alias.name.split(".")[0]
                    for alias in node.names
                    if _is_third_party(alias.name)
                }
            elif isinstance(node, ast.ImportFrom) and not node.level:
                taken = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [
                module.at(node, f"imports {name}: it is private to its distribution")
                for name in taken
                if _is_third_party(name) and _is_private(name)
            ]
        found += [
            module.at(node, f"uses {ast.unparse(node)}: it is private to its distribution")
            for node in module.nodes
            if isinstance(node, ast.Attribute)
            and _root_name(node) in aliases
            and _is_private(node.attr)
        ]
    return found


def oversize(root: Path) -> list[str]:
    """Name each function and file that has outgrown its limit."""
    found: list[str] = []
    for module in modules(root):
        lines = len(module.path.read_text("utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            found.append(f"{module.where}: {lines} lines, over {MAX_FILE_LINES}; split it by verb")
        for node in module.nodes:
            if isinstance(node, _Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    message = f"{node.name} has {lines} lines, over {MAX_FUNCTION_LINES}"
                    found.append(module.at(node, message))
    return found


def vague_names(root: Path) -> list[str]:
    """Name each file, class and function whose name says nothing."""
    found: list[str] = []
    for module in modules(root):
        stem = module.parts[-1]
        if stem in _VAGUE_FILES or _VAGUE_SNAKE.search(stem):
            found.append(f"{module.where}: a file is one noun, and {stem!r} is none")
        for node in module.nodes:
            vague = (isinstance(node, ast.ClassDef) and _VAGUE_CLASS.search(node.name)) or (
                isinstance(node, _Function) and _VAGUE_SNAKE.search(node.name)
            )
            if vague:
                found.append(module.at(node, "the name says nothing; name what it is or does"))
    return found


def inline_sql(root: Path) -> list[str]:
    """Name each SQL statement in Python; transaction words and PRAGMA are no statements here."""
    return [
        module.at(node, "SQL in Python: make it a named query in a .sql file")
        for module in modules(root)
        for node in _strings(module)
        if _SQL.match(str(node.value))
    ]


def _strings(module: Module) -> Iterator[ast.Constant]:
    """Yield the string literals of a module that are not docstrings."""
    docstrings = {
        id(node.value)
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in module.nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node


def _is_third_party(dotted: str) -> bool:
    top = dotted.partition(".")[0]
    return top != PACKAGE and top not in sys.stdlib_module_names


def _is_private(dotted: str) -> bool:
    return any(
        part.startswith("_") and not (part.startswith("__") and part.endswith("__"))
        for part in dotted.split(".")
    )


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
