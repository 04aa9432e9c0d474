from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.row import Cannot, NotDurable, Row, Setting
from benchmarks.storages import Storage

MODULES = {
    "P1": "p1_sequential",
    "P2": "p2_sequential",
    "P3": "p3_concurrent",
    "P4": "p4_concurrent",
    "P5": "p5_single",
    "P6": "p6_replay",
    "P7": "p7_takeover",
    "P8": "p8_size",
    "P9": "p9_large",
    "P10": "p10_footprint",
    "P11": "p11_streaming",
    "P12": "p12_receipts",
    "P13": "p13_agent",
    "P14": "p14_two_workers",
    "T1": "t1_temporal",
}

NO_SERVER = "skipped: no server is given, see --postgres"


def measure(
    numbers: Sequence[str], setting: Setting, found: Mapping[str, Storage], chosen: Sequence[str]
) -> list[dict[str, Any]]:
    """Measure rows on the storages that are chosen, and return what they came to."""
    documents: list[dict[str, Any]] = []
    for number in numbers:
        row: Row = importlib.import_module(f"benchmarks.{MODULES[number]}").ROW
        documents += [
            _measure(row, name, setting, found.get(name)) for name in row.storages if name in chosen
        ]
    return documents


def _measure(row: Row, name: str, setting: Setting, storage: Storage | None) -> dict[str, Any]:
    print(f"{row.number} {row.work}, {name} …", end=" ", file=sys.stderr, flush=True)
    began = time.perf_counter()
    figures, failure, skipped = [], "", ""
    if storage is None:
        skipped = NO_SERVER
    else:
        folder = setting.folder / name
        here = dataclasses.replace(setting, folder=folder, storage=storage)
        try:
            if row.check is not None:
                row.check(here)
            figures = [figure.document() for figure in row.measure(here)]
        except Cannot as error:
            skipped = f"skipped: {error}"
        except NotDurable as error:
            failure = f"not durable: {error}"
        except Exception as error:  # noqa: BLE001 - a row that breaks must not hide the others
            failure = f"{type(error).__name__}: {error}"
        finally:
            storage.drop()
    seconds = time.perf_counter() - began
    print(failure or skipped or f"{seconds:.1f} s", file=sys.stderr, flush=True)
    return {
        "number": row.number,
        "storage": name,
        "work": row.work,
        "floor": row.floor,
        "seconds": seconds,
        "failure": failure,
        "skipped": skipped,
        "figures": figures,
    }
