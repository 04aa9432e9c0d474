from __future__ import annotations

from benchmarks.p3_concurrent import row
from benchmarks.storages import POSTGRES

ROW = row("P4", POSTGRES, 9_000, 5_000)
