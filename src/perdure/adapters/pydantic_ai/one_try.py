from __future__ import annotations

from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from perdure.adapters.pydantic_ai.site import here


def one_try(ctx: RunContext[Any]) -> ModelSettings:
    """Return the setting that turns off the retries of a provider's client, if it has one."""
    if here() is None or _ignores_retries(ctx.model):
        return ModelSettings()
    return ModelSettings(max_retries=0)


def _ignores_retries(model: object) -> bool:
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return isinstance(model, Model) and "max_retries" in model.unsupported_settings


def check_one_try(request_context: ModelRequestContext) -> None:
    """Raise `UserError` for a request that its provider's client would try again."""
    settings: dict[str, Any] = {**(request_context.model_settings or {})}
    retries = settings.get("max_retries")
    if retries:
        raise UserError(
            f"max_retries={retries} was set for a request inside a run, where the journal retries"
            " and the provider's client must not; leave it out and give Durable(retry=...) instead"
        )
