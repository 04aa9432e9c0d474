from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.acceptance.samples import LONG

_ROOT = Path(__file__).parents[2]


def _execute(environment: dict[str, str], folder: Path, ending: str, seed: int) -> Any:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.conformance.pydantic_ai.execute", folder, ending],
        cwd=_ROOT,
        env={**environment, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


@LONG
def test_processes_with_other_hash_seeds_ask_for_the_same_bytes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    left = _execute(environment, tmp_path, "leave", seed=1)
    finished = _execute(environment, tmp_path, "finish", seed=2)
    for kind in ("buffered", "streamed"):
        first, second = left[kind], finished[kind]
        assert first["done"]["request"] == 5
        assert second["done"] == {}, "a replay whose digests differ would not have got this far"
        assert second["history"] == first["history"]
        assert second["places"] == first["places"]
