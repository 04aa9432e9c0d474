from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def package(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Write a package of the given files and return its folder."""

    def write(files: dict[str, str]) -> Path:
        root = tmp_path / "perdure"
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return root

    return write
