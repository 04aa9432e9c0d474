from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import growth, machine, page, suite, table
from benchmarks.peers import beside, comparison
from benchmarks.row import Setting
from benchmarks.soak import command as soak
from benchmarks.storages import POSTGRES, SQLITE, storages

_SERVER = "PERDURE_TEST_POSTGRES_URL"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; return 1 when a row failed, which a missed target is not."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["soak"]:
        return soak.main(given[1:])
    options = _options(given)
    if options.page is not None:
        page.write([json.loads(file.read_text("utf-8")) for file in options.page])
        return 0
    with tempfile.TemporaryDirectory(prefix="perdure-benchmarks-", dir=options.folder) as name:
        folder = Path(name)
        if not machine.syncs(folder):
            print("this folder is in memory, where no write is durable: give --folder", flush=True)
            return 1
        document = _document(options, folder)
    _show(document)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return int(any(row["failure"] for row in document["rows"]))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what perdure's promises cost, each figure beside its floor.",
        epilog="`python -m benchmarks soak --help` tells of the soak.",
    )
    parser.add_argument("--only", type=_numbers, default=list(suite.MODULES), metavar="P3,P5")
    parser.add_argument("--quick", action="store_true", help="fewer runs: seconds, not minutes")
    parser.add_argument(
        "--postgres",
        metavar="URL",
        default=os.environ.get(_SERVER),
        help=f"a server in which databases may be made; by default what {_SERVER} says",
    )
    parser.add_argument("--on", choices=(SQLITE, POSTGRES), help="only this storage")
    parser.add_argument(
        "--peers", action="store_true", help="the same work by others too: the group benchmarks"
    )
    parser.add_argument(
        "--growth", action="store_true", help="instead: how costs grow with what is stored"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    parser.add_argument("--folder", type=Path, help="where to write: a folder on a real disk")
    parser.add_argument(
        "--page",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="put the results into the docs and stop; of each row, the last FILE counts",
    )
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[str]:
    numbers = [number.strip().upper() for number in text.split(",")]
    unknown = [number for number in numbers if number not in suite.MODULES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no row {unknown[0]}; there is: {', '.join(suite.MODULES)}"
        )
    return numbers


def _document(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    found = storages(options.postgres)
    chosen = [options.on] if options.on else [SQLITE, POSTGRES]
    document = {
        "date": datetime.now(UTC).date().isoformat(),
        "quick": options.quick,
        "machine": machine.facts(folder, found.values()),
    }
    setting = Setting(folder, options.quick)
    if options.growth:
        return {**document, "rows": [], "growth": growth.measure(setting, found, chosen)}
    document["rows"] = suite.measure(options.only, setting, found, chosen)
    if options.peers:
        document["peers"] = beside.measure(options.only, setting, found, chosen)
    return document


def _show(document: dict[str, Any]) -> None:
    if document["rows"]:
        table.show(table.HEADINGS, table.lines(document["rows"]))
    if "peers" in document:
        table.show(comparison.headings(), comparison.lines(document))
        print(*comparison.notes(document), sep="\n")
    if "growth" in document:
        table.show(growth.HEADINGS, growth.lines(document["growth"]))
    for name, value in document["machine"].items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    sys.exit(main())
