from __future__ import annotations

import functools
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_ai.durable_exec import DynamicToolsetCallToolParams, ToolsetCallToolParams
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage

ParamsT = TypeVar("ParamsT")


class Spending:
    """What one tool call adds to its run's usage, as an agent does that is called inside it.

    The tool counts into a copy, so that calls beside it do not mix in. What it added is recorded
    with its result and added to the run's usage on the first execution and on every replay alike.
    """

    def __init__(self, usage: RunUsage) -> None:
        self._before = _copied(usage)
        self._usage = _copied(usage)

    def counted(self, params: ParamsT) -> ParamsT:
        """Return the parameters of a tool call with a usage of its own."""
        assert isinstance(params, ToolsetCallToolParams | DynamicToolsetCallToolParams)
        own = replace(params, ctx=replace(params.ctx, usage=self._usage))
        return cast("ParamsT", own)

    def written(self) -> dict[str, Any] | None:
        """Return what was added, or None for nothing."""
        added = self._usage - self._before
        if not (added.has_values() or added.unmeasured_requests):
            return None
        return _adapter().dump_python(added, mode="json", exclude_defaults=True)


def add_spent(written: object, ctx: RunContext[Any]) -> None:
    """Add what a tool call spent to the usage of its run."""
    if written is not None:
        ctx.usage.incr(_adapter().validate_python(written))


def _copied(usage: RunUsage) -> RunUsage:
    twin = copy(usage)
    twin.details = {**usage.details}
    return twin


@functools.cache
def _adapter() -> TypeAdapter[RunUsage]:
    return TypeAdapter(RunUsage)
