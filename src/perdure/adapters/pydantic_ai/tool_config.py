from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition

from perdure.effects.answer import Lookup
from perdure.effects.effect import NO_LOOKUP
from perdure.effects.support import EffectPolicy, SideEffectSupport
from perdure.functions import Operation
from perdure.retry import RetryPolicy

_KEY = "perdure"


class ToolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the calls of one tool are performed: `Tool(..., metadata={"perdure": ToolConfig(...)})`.

    For a tool whose function declares nothing itself, with `effect` or `operation`. `retry` says
    which of its exceptions are tried again, and when; None for none. A tool that is `read_only`
    changes nothing by itself and gets no receipt. Any other has an effect: `effect` says what its
    target can do about a repeat, None that it can do nothing, and `lookup` asks the target.

    Raises `UserError` for what contradicts itself.
    """

    retry: RetryPolicy | None = None
    read_only: bool = False
    effect: EffectPolicy | None = None
    lookup: Lookup | None = None

    def __post_init__(self) -> None:
        if self.read_only and (self.effect is not None or self.lookup is not None):
            raise UserError("a tool that is read_only has no effect: leave effect and lookup out")
        if self.lookup is not None and self.effect is None:
            raise UserError(
                "a lookup is asked about an effect that can be looked up: give the ToolConfig"
                " effect=EffectPolicy(support=SideEffectSupport.OUTCOME_QUERYABLE) too"
            )
        queryable = SideEffectSupport.OUTCOME_QUERYABLE
        if self.lookup is None and self.effect is not None and self.effect.support is queryable:
            raise UserError(f"a ToolConfig: {NO_LOOKUP} pass it on as lookup=find")


def config_of(tool_def: ToolDefinition | None, tool_name: str) -> ToolConfig | Literal[False]:
    """Return what a tool's metadata says; False for a tool that is not to be journalled."""
    metadata: dict[str, Any] = (tool_def and tool_def.metadata) or {}
    configured = metadata.get(_KEY)
    if configured is None:
        return ToolConfig()
    if configured is False or isinstance(configured, ToolConfig):
        return configured
    raise UserError(
        f"the metadata 'perdure' of tool {tool_name!r} is a ToolConfig or False, which leaves"
        f" the tool out of the journal; it is {configured!r}"
    )


def check_agreement(
    config: ToolConfig | Literal[False], declared: Operation | None, tool_name: str
) -> None:
    """Raise `UserError` when a tool is declared twice: by its function and by its metadata."""
    if declared is None or config == ToolConfig():
        return
    if config is False:
        if declared.effect is None:
            return
        raise UserError(
            f"the function of tool {tool_name!r} declares an effect, and its metadata"
            " {'perdure': False} leaves it out of the journal, where effects are kept: drop one"
        )
    if config == ToolConfig(retry=config.retry) and declared.retry is None:
        return
    raise UserError(
        f"tool {tool_name!r} is declared twice: by a decorator on its function and by the"
        " ToolConfig in its metadata; leave everything to the decorator"
    )
