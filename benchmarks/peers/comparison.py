from __future__ import annotations

from typing import Any

from benchmarks.peers.catalog import LABELS
from benchmarks.table import TIMES, Line, quantity

_NONE = "\N{EM DASH}"

Key = tuple[str, str, str]


def headings() -> Line:
    return ("row", "on", "measured", "perdure", *LABELS)


def lines(document: dict[str, Any]) -> list[Line]:
    """Return perdure's figures beside the peers': medians, and ratios to each one's own floor."""
    ours = {
        (row["number"], row["storage"], figure["name"]): figure
        for row in document["rows"]
        for figure in row["figures"]
    }
    theirs: dict[Key, dict[str, Any]] = {}
    for entry in document["peers"]["figures"]:
        if entry["name"]:
            key = (entry["number"], entry["storage"], entry["name"])
            theirs.setdefault(key, {})[entry["peer"]] = entry
    # In the order of the rows, whatever a peer could not do.
    order = list(dict.fromkeys((row["number"], row["storage"]) for row in document["rows"]))
    keys = sorted(theirs, key=lambda key: order.index(key[:2]) if key[:2] in order else len(order))
    return [_line(key, ours.get(key), theirs[key]) for key in keys]


def notes(document: dict[str, Any]) -> list[str]:
    """Return with which settings the peers worked, and what their cells are to be read with."""
    peers = document["peers"]
    said: dict[tuple[str, str], list[str]] = {}
    for entry in peers["figures"]:
        for key in ("failure", "reason", "remark"):
            if entry[key]:
                who = f"{entry['peer']} on {entry['storage']}"
                numbers = said.setdefault((who, entry[key]), [])
                numbers += [entry["number"]] if entry["number"] not in numbers else []
    return [
        *(f"{name}: {settings}" for name, settings in peers["settings"].items()),
        *(f"{who}, {' '.join(numbers)}: {text}" for (who, text), numbers in said.items()),
    ]


def _line(key: Key, ours: dict[str, Any] | None, theirs: dict[str, dict[str, Any]]) -> Line:
    number, storage, _ = key
    some = ours or next(iter(theirs.values()))
    return (
        number,
        storage,
        some["label"],
        _cell(ours),
        *(_cell(theirs.get(label)) for label in LABELS),
    )


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return _NONE
    value = quantity(figure["value"], figure["unit"])
    return value if figure["ratio"] is None else f"{value}, {_ratio(figure['ratio'])}"


def _ratio(ratio: float) -> str:
    return f"{ratio:.3g}{TIMES}" if ratio < 100 else f"{ratio:.0f}{TIMES}"
