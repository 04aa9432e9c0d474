from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.durability import kill_at
from benchmarks.ledger import Ledger
from benchmarks.peers.catalog import VARIANTS, Variant
from benchmarks.peers.rows import ROWS, WRITTEN
from benchmarks.peers.stage import Stage
from benchmarks.row import Cannot, Figure, NotDurable, Setting
from benchmarks.storages import Storage
from benchmarks.suite import NO_SERVER

_NOT_DURABLE = "not durable"
_RUNS, _OPERATIONS = 8, 25
_PATIENCE_SECONDS = 90.0


def measure(
    numbers: Sequence[str], setting: Setting, found: Mapping[str, Storage], chosen: Sequence[str]
) -> dict[str, Any]:
    """Let every peer do the work of the rows; return their settings and what came of it."""
    settings: dict[str, str] = {}
    entries: list[dict[str, Any]] = []
    for variant in VARIANTS:
        storage = found.get(variant.storage)
        wanted = [number for number in numbers if _does(variant, number)]
        if variant.storage not in chosen or not wanted:
            continue
        name = f"{variant.label} on {variant.storage}"
        if storage is None:
            settings[name] = NO_SERVER
            continue
        folder = setting.folder / "peers" / variant.storage / variant.label.replace(", ", "-")
        stage = Stage(variant, dataclasses.replace(setting, folder=folder, storage=storage))
        settings[name], failure = _checked(stage)
        for number in wanted:
            told = failure if number in WRITTEN or not failure.startswith(_NOT_DURABLE) else ""
            entries += _entries(stage, number, told)
    return {"settings": settings, "figures": entries}


def _does(variant: Variant, number: str) -> bool:
    return number in ROWS and variant.storage in ROWS[number][0]


def _checked(stage: Stage) -> tuple[str, str]:
    """Return with which settings a peer works, and why none of its figures may count, if so."""
    print(f"{stage.variant.label}, {stage.setting.storage.name} …", end=" ", file=sys.stderr)
    settings, failure = "", ""
    try:
        versions = stage.variant.versions
        with stage.place("settings") as place:
            settings = f"{versions}; {stage.ask(place, 'settings')}"
        with stage.place("durable") as place:
            _check(stage, place)
    except Cannot as error:
        settings = failure = str(error)
    except NotDurable as error:
        failure = f"{_NOT_DURABLE}: {error}"
    except Exception as error:  # noqa: BLE001 - a peer that breaks must not hide the others
        failure = f"{type(error).__name__}: {error}"
    finally:
        stage.setting.storage.drop()
    print(failure or "durable", file=sys.stderr, flush=True)
    return settings or failure, failure


def _check(stage: Stage, place: Any) -> None:
    """Kill it once in the middle of runs; what it had completed may not be called again."""
    ledger = Ledger(place.folder / "ledger")
    command = stage.command(place, "durable", _RUNS, _OPERATIONS, ledger=ledger.path)
    try:
        kill_at([0.5], _RUNS * _OPERATIONS, ledger, command, _PATIENCE_SECONDS)
    finally:
        ledger.close()


def _entries(stage: Stage, number: str, failure: str) -> list[dict[str, Any]]:
    """Return what a peer's figures of a row are, or one entry that says why there are none."""
    variant = stage.variant
    began = time.perf_counter()
    figures: list[Figure] = []
    reason = variant.cannot.get(number, "")
    failure = "" if reason else failure
    if not failure and not reason:
        print(f"  {number} …", end=" ", file=sys.stderr, flush=True)
        try:
            figures = ROWS[number][1](stage)
        except NotDurable as error:
            failure = f"{_NOT_DURABLE}: {error}"
        except Exception as error:  # noqa: BLE001 - as above
            failure = f"{type(error).__name__}: {error}"
        finally:
            stage.setting.storage.drop()
        seconds = time.perf_counter() - began
        print(failure or f"{seconds:.1f} s", file=sys.stderr, flush=True)
    common = {
        "number": number,
        "storage": variant.storage,
        "peer": variant.label,
        "remark": variant.remarks.get(number, ""),
        "reason": reason,
        "failure": failure,
    }
    if not figures:
        return [{**common, "name": ""}]
    return [{**common, **figure.document()} for figure in figures]
