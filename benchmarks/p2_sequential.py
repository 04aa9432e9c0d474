from __future__ import annotations

from benchmarks.p1_sequential import row
from benchmarks.storages import POSTGRES

ROW = row("P2", POSTGRES, 1.8, 3.0)
