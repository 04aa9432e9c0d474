from __future__ import annotations

from perdure.errors import MissingExtra
from perdure.journal.budget import Budget

try:
    from perdure.adapters.pydantic_ai.capability import Durable
    from perdure.adapters.pydantic_ai.history import history_of
    from perdure.adapters.pydantic_ai.serving import agent_handlers
    from perdure.adapters.pydantic_ai.site import durable_on
    from perdure.adapters.pydantic_ai.tool_config import ToolConfig
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"pydantic_ai", "pydantic_core"}:
        raise
    raise MissingExtra(
        f"durable agents need Pydantic AI, and there is no {error.name}: pip install"
        " 'perdure[pydantic-ai]'"
    ) from error

__all__ = ["Budget", "Durable", "ToolConfig", "agent_handlers", "durable_on", "history_of"]
