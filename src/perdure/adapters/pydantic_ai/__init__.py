from __future__ import annotations

from perdure.adapters.pydantic_ai.backend import ToolConfig
from perdure.adapters.pydantic_ai.capability import Durable

__all__ = ["Durable", "ToolConfig"]
