"""The layering rules of ARCHITECTURE.md as checks over a package folder.

Every import counts: inside functions, under TYPE_CHECKING, and by literal name through
`import_module`. There is no list of exceptions: where a rule hurts, the code moves.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from tests.architecture.source import PACKAGE, Import, Module, imports, modules

ROOT = ""  # perdure/__init__.py: the public names

FOUNDATION, PLANES, MEETING, ENGINE, EDGES, COMPOSITION, FRONT_ENDS = range(7)

PLACES: dict[str, int] = {
    "errors": FOUNDATION,
    "ids": FOUNDATION,
    "clock": FOUNDATION,
    "canonical": FOUNDATION,
    "codec": FOUNDATION,
    "retry": FOUNDATION,
    "observe": FOUNDATION,
    "fence": FOUNDATION,
    "wording": FOUNDATION,
    "annotations": FOUNDATION,
    "strict_json": FOUNDATION,
    "journal": PLANES,
    "effects": PLANES,
    "session": PLANES,
    "perform": MEETING,
    "secrets": MEETING,
    "context": MEETING,
    "ports": MEETING,
    "delays": MEETING,
    "activity": MEETING,
    "asked": MEETING,
    "asked_effect": MEETING,
    "attempt": MEETING,
    "functions": MEETING,
    "identity_parameter": MEETING,
    "effect_function": MEETING,
    "declaration": MEETING,
    "boundary": MEETING,
    "tenure": MEETING,
    "terms": MEETING,
    "tries": MEETING,
    "preflight": MEETING,
    "inbox": MEETING,
    "waits": MEETING,
    "recorder": MEETING,
    "scope": MEETING,
    "approvals": MEETING,
    "outside": MEETING,
    "child": MEETING,
    "queued": MEETING,
    "external_events": MEETING,
    "showing": MEETING,
    "turn": MEETING,
    "engine": ENGINE,
    "storage": EDGES,
    "channels": EDGES,
    "runtimes": EDGES,
    "adapters": EDGES,
    "app": COMPOSITION,
    "mail": COMPOSITION,
    "schedules": COMPOSITION,
    "sessions": COMPOSITION,
    "queues": COMPOSITION,
    "audit": COMPOSITION,
    "background": COMPOSITION,
    "blobs": COMPOSITION,
    "blocking": COMPOSITION,
    "checkpoints": COMPOSITION,
    "encryption": COMPOSITION,
    "home": COMPOSITION,
    "receipts": COMPOSITION,
    "sync": COMPOSITION,
    "upkeep": COMPOSITION,
    "urls": COMPOSITION,
    "testing": COMPOSITION,
    "cli": FRONT_ENDS,
    "demo": FRONT_ENDS,
    "server": FRONT_ENDS,
    "sidecar": FRONT_ENDS,
    "__main__": FRONT_ENDS,
}

# Which front end starts another, and which are programs as users write them: all below is theirs.
STARTS = {"__main__": {"cli"}, "cli": {"demo", "server", "sidecar"}, "demo": {"server"}}
PROGRAMS = {"demo"}

# Which front end has no App below it, and what it stands on instead.
STANDS_ON = {"sidecar": {"attempt", "canonical", "ids", "journal", "runtimes", "wording"}}

# Who puts a system together, and the pieces of that layer that they share.
WIRING = {"app", "audit", "receipts", "sync"}
PARTS = {
    "background",
    "blocking",
    "encryption",
    "home",
    "mail",
    "queues",
    "schedules",
    "sessions",
    "upkeep",
    "urls",
}

# Which pieces of a layer are made of others of it.
MADE_OF = {
    "codec": {"annotations", "canonical"},
    "background": {"blocking"},
    "home": {"background"},
    "sync": {"receipts"},
    "sessions": {"mail"},
    "testing": {"app"},
}

# The ground of layer 0: every foundation file may know these, and these know no other.
GROUND = {"errors", "strict_json"}

# What an edge may know of the engine: its ports and the records in them.
ENGINE_PORTS = {
    "perdure.engine.store",
    "perdure.engine.dispatch",
    "perdure.engine.run_state",
    "perdure.engine.health",
    "perdure.engine.history",
    "perdure.engine.workers",
    "perdure.engine.retention",
    "perdure.engine.archive",
    "perdure.engine.archived_run",
    "perdure.engine.reencryption",
    "perdure.engine.schedules",
    "perdure.engine.queues",
    "perdure.engine.turns",
}

# What a front end may know below `app`.
PORTS = {
    "perdure.strict_json",
    "perdure.codec.readable",
    "perdure.clock",
    "perdure.encryption",
    "perdure.journal.store",
    "perdure.journal.runtime",
    "perdure.effects.answer",
    "perdure.effects.receipt",
    "perdure.effects.store",
    "perdure.approvals",
    "perdure.inbox",
    "perdure.session",
    "perdure.engine.rehearsal",
    *ENGINE_PORTS,
}

STORAGE_DRIVERS = {"memory", "sqlite", "postgres"}

CORE_THIRD_PARTY = {"msgspec"}
# Distributions that come as one: an edge binds to one family.
FAMILIES = [
    {"pydantic_ai", "pydantic", "pydantic_core", "mcp"},
    {"mcp", "mcp_types", "httpx2", "anyio", "pydantic"},
    {"psycopg", "psycopg_pool"},
]
FRONT_END_THIRD_PARTY = {
    "cli": {"rich"},
    "demo": {"pydantic_ai", "mcp", "fastmcp", "starlette"},
    "server": {"starlette", "uvicorn", "jwt"},
    "sidecar": {"prometheus_client", "starlette", "temporalio", "uvicorn"},
}


def unplaced(root: Path) -> list[str]:
    """Name the top-level files and folders that no layer claims."""
    return [
        f"{module.where}: {module.parts[1]!r} is in no layer; place it in PLACES of"
        " tests/architecture/layers.py and in ARCHITECTURE.md"
        for module in modules(root)
        if _place(module.name) not in PLACES and _place(module.name) != ROOT
    ]


def layer_violations(root: Path) -> list[str]:
    """Name each import of the package's own modules that its layer forbids."""
    found: list[str] = []
    for module, own, _ in _imports(root):
        for target in own:
            reason = _refusal(module.name, target.target)
            if reason:
                found.append(module.at(target.node, f"imports {target.target}: {reason}"))
    return found


def third_party_violations(root: Path) -> list[str]:
    """Name each import from outside that its layer forbids."""
    found: list[str] = []
    edges: dict[str, set[str]] = {}
    for module, _, outside in _imports(root):
        place = _place(module.name)
        layer = PLACES.get(place, FOUNDATION)
        for target in outside:
            top = target.target.split(".")[0]
            if layer <= ENGINE and top == "sqlite3":
                found.append(module.at(target.node, "imports sqlite3: SQL belongs to storage"))
            if top in sys.stdlib_module_names or top in CORE_THIRD_PARTY:
                continue
            if layer == EDGES or place == "testing":
                edge = ".".join(module.parts[:3])
                edges.setdefault(edge, set()).add(top)
            elif top not in FRONT_END_THIRD_PARTY.get(place, set()):
                found.append(module.at(target.node, f"imports {top}: no third party here"))
    for edge, used in sorted(edges.items()):
        if len(used) > 1 and not any(used <= family for family in FAMILIES):
            found.append(f"{edge}: imports {', '.join(sorted(used))}: one third party an edge")
    return found


def cycles(root: Path) -> list[str]:
    """Name each chain of imports that comes back to where it began."""
    graph = {module.name: {i.target for i in own} for module, own, _ in _imports(root)}
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for target in sorted(graph.get(name, set()) - {name}):
                visit(target, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


@cache
def _imports(root: Path) -> list[tuple[Module, list[Import], list[Import]]]:
    """Pair each module with its imports from inside the package and from outside."""
    every = modules(root)
    known = {module.name for module in every}
    result: list[tuple[Module, list[Import], list[Import]]] = []
    for module in every:
        own: list[Import] = []
        outside: list[Import] = []
        for target in imports(module, known):
            (own if target.target.split(".")[0] == PACKAGE else outside).append(target)
        result.append((module, own, outside))
    return result


def _place(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ROOT


def _under(name: str, ancestor: str) -> bool:
    return name == ancestor or name.startswith(ancestor + ".")


def _refusal(source: str, target: str) -> str | None:
    """Say why `source` may not import `target`, or return None."""
    here, there = _place(source), _place(target)
    if here == ROOT:
        return "front ends are programs" if PLACES.get(there) == FRONT_ENDS else None
    layer = PLACES.get(here, FOUNDATION)
    if there == ROOT:
        return None if layer == FRONT_ENDS else "only front ends use the public names"
    level = PLACES.get(there, FRONT_ENDS)
    if here == there:
        return _sibling(source, target)
    if there in MADE_OF.get(here, ()):
        return None
    if layer == FOUNDATION:
        grounded = there in GROUND and here not in GROUND
        return None if grounded else f"layer 0 knows only {' and '.join(sorted(GROUND))}"
    if there in STARTS.get(here, ()) or (here in PROGRAMS and level < FRONT_ENDS):
        return None
    if there in STANDS_ON.get(here, ()):
        return None
    if layer == FRONT_ENDS:
        allowed = there in {"app", "audit", "errors"} or any(_under(target, port) for port in PORTS)
        return None if allowed else "a front end knows app, audit, errors, ports and public names"
    if level < layer:
        port = any(_under(target, port) for port in ENGINE_PORTS)
        if layer == EDGES and level == ENGINE and not port:
            return f"an edge knows only {', '.join(sorted(ENGINE_PORTS))} of the engine"
        return None
    if (layer == level == MEETING) or (here in WIRING and there in PARTS):
        return None
    return f"layer {layer} knows nothing of layer {level} but itself"


def _sibling(source: str, target: str) -> str | None:
    """Say why an edge may not import another of its folder, or return None."""
    place, here, there = _place(source), _child(source), _child(target)
    if PLACES[place] != EDGES or here == there or not there:
        return None
    if place == "storage":
        drivers = {here, there} <= STORAGE_DRIVERS
        return "storage drivers never import each other" if drivers else None
    return f"{place} never import each other"


def _child(name: str) -> str:
    parts = name.split(".")
    return parts[2] if len(parts) > 2 else ""
