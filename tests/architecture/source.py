"""The modules of a package and what each imports, read from their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

PACKAGE = "perdure"
SRC = Path(__file__).parents[2] / "src" / PACKAGE


@dataclass(frozen=True)
class Module:
    """A source file; `name` is its dotted name, `where` how a message calls it."""

    name: str
    path: Path
    where: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """Every node of the tree, for the many checks that walk it."""
        return [*ast.walk(self.tree)]

    @property
    def parts(self) -> list[str]:
        return self.name.split(".")

    def at(self, node: ast.AST, message: str) -> str:
        return f"{self.where}:{getattr(node, 'lineno', 1)}: {message}"


@dataclass(frozen=True)
class Import:
    """An import at any depth of a module; `target` is the dotted name of what is loaded."""

    target: str
    node: ast.AST


@cache
def modules(root: Path) -> Sequence[Module]:
    """Read every module under the package folder `root`, once."""
    found: list[Module] = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        parts = [PACKAGE, *inside.with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        tree = ast.parse(path.read_text("utf-8"), str(path))
        found.append(Module(".".join(parts), path, inside.as_posix(), tree))
    return found


def imports(module: Module, known: set[str]) -> Iterator[Import]:
    """Yield what a module imports, also inside functions, for types only, or by literal name.

    `known` holds the names of the package's own modules: `from perdure.a import b` loads
    `perdure.a.b` where that is a module, and `perdure.a` where `b` is a name in it.
    """
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node)
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known else base, node)
        elif (
            isinstance(node, ast.Call)
            and _called(node) in {"import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            yield Import(node.args[0].value, node)


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = module.path.name == "__init__.py"
    upwards = node.level - 1 if is_package else node.level
    parts = module.parts[: len(module.parts) - upwards]
    return ".".join([*parts, node.module] if node.module else parts)


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
