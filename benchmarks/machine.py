from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.storages import Storage

_NAMED_PACKAGES = ("perdure", "msgspec", "psycopg", "pydantic-ai-slim", "temporalio")
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "overlay on tmpfs"}


def facts(folder: Path, storages: Iterable[Storage]) -> dict[str, Any]:
    """Return what a reader needs to know of the machine, the versions and the durability."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "file system": file_system(folder),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        **{name: found for name in _NAMED_PACKAGES if (found := version_of(name))},
        **{f"{each.name} writes": each.durability(folder) for each in storages},
    }


def file_system(folder: Path) -> str:
    """Return the kind of the file system that a folder is on."""
    where = str(folder.resolve())
    best = ("", "unknown")
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        _, point, kind, *_ = line.split()
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def syncs(folder: Path) -> bool:
    """Return whether an fsync in this folder costs anything at all."""
    return file_system(folder) not in _MEMORY_FILE_SYSTEMS


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version_of(name: str) -> str | None:
    """Return the version of an installed package; None where it is missing."""
    try:
        return version(name)
    except ModuleNotFoundError:
        return None
