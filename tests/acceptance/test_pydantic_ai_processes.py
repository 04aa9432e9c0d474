from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


def _execute(database: Path, kind: str, ending: str, seed: int) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.conformance.pydantic_ai.execute", database, kind, ending],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


@pytest.mark.parametrize("kind", ["buffered", "streamed"])
def test_processes_with_other_hash_seeds_ask_for_the_same_bytes(tmp_path: Path, kind: str) -> None:
    first = _execute(tmp_path / "runs.db", kind, "leave", seed=1)
    second = _execute(tmp_path / "runs.db", kind, "finish", seed=2)
    assert first["done"]["request"] == 5
    assert second["done"] == {}, "a replay whose digests differ would not have got this far"
    assert second["history"] == first["history"]
    assert second["places"] == first["places"]
