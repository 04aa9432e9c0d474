from __future__ import annotations

from typing import Final

MARK: Final = "$perdure"
"""The key under which a JSON object says what kind of value it stands for."""
