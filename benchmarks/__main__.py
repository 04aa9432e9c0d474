from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, page, table
from benchmarks.row import NotDurable, Row, Setting

_MODULES = {
    "P1": "p1_sequential",
    "P3": "p3_concurrent",
    "P5": "p5_single",
    "P6": "p6_replay",
    "P7": "p7_takeover",
    "P10": "p10_footprint",
    "P12": "p12_receipts",
    "P13": "p13_agent",
    "P14": "p14_two_workers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; return 1 when a row failed, which a missed target is not."""
    options = _options(arguments)
    if options.page is not None:
        page.write(json.loads(options.page.read_text("utf-8")))
        return 0
    with tempfile.TemporaryDirectory(prefix="perdure-benchmarks-", dir=options.folder) as name:
        folder = Path(name)
        if not machine.syncs(folder):
            print("this folder is in memory, where no write is durable: give --folder", flush=True)
            return 1
        document = _run(options.only, Setting(folder, quick=options.quick))
    table.show([line for row in document["rows"] for line in table.cells(row)])
    for name, value in document["machine"].items():
        print(f"{name}: {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return int(any(row["failure"] for row in document["rows"]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what perdure's promises cost, each figure beside its floor.",
    )
    parser.add_argument("--only", type=_numbers, default=list(_MODULES), metavar="P3,P5")
    parser.add_argument("--quick", action="store_true", help="fewer runs: seconds, not minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    parser.add_argument("--folder", type=Path, help="where to write: a folder on a real disk")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the results in FILE into the docs and stop"
    )
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[str]:
    numbers = [number.strip().upper() for number in text.split(",")]
    unknown = [number for number in numbers if number not in _MODULES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no row {unknown[0]}; there is: {', '.join(_MODULES)}"
        )
    return numbers


def _run(numbers: Sequence[str], setting: Setting) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "quick": setting.quick,
        "machine": machine.facts(setting.folder),
        "rows": [_measure(number, setting) for number in numbers],
    }


def _measure(number: str, setting: Setting) -> dict[str, Any]:
    row: Row = importlib.import_module(f"benchmarks.{_MODULES[number]}").ROW
    print(f"{number} {row.work} …", end=" ", file=sys.stderr, flush=True)
    began = time.perf_counter()
    figures, failure = [], ""
    try:
        if row.check is not None:
            row.check(setting)
        figures = [figure.document() for figure in row.measure(setting)]
    except NotDurable as error:
        failure = f"not durable: {error}"
    except Exception as error:  # noqa: BLE001 - a row that breaks must not hide the others
        failure = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    print(failure or f"{seconds:.1f} s", file=sys.stderr, flush=True)
    return {
        "number": number,
        "work": row.work,
        "floor": row.floor,
        "seconds": seconds,
        "failure": failure,
        "figures": figures,
    }


if __name__ == "__main__":
    sys.exit(main())
