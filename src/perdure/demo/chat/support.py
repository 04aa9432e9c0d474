from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from perdure import App, Context, SideEffectSupport, WorkerOptions
from perdure.adapters.pydantic_ai import Durable, history_of
from perdure.demo.chat.script import scripted
from perdure.demo.gate import Gate
from perdure.demo.report import Report
from perdure.demo.shop import Shop
from perdure.demo.tools import build_tools
from perdure.errors import CommandError
from perdure.turn import Turn

_INSTRUCTIONS: Final = (
    "You answer customers of a shop, in a few sentences. When something arrived broken: look up the"
    " order and track its parcel, then refund what was paid, then tell the customer what happens."
)


def shop_in(folder: Path) -> Shop:
    """Return the shop of a demo."""
    return Shop(folder / "shop.db")


def build_app(folder: Path, *, model: str | None = None, name: str = "server") -> App:
    """Return the App of the demo, the same in the server and in each worker.

    `model` is the name of a real one; None for the scripted one. Raises `CommandError` when it
    cannot be had.
    """
    shop = shop_in(folder)
    gate = Gate("none", _tell_nobody)
    support = SideEffectSupport.OUTCOME_QUERYABLE
    agent: Agent[Shop, str] = Agent(
        _model(model),
        name="support",
        deps_type=Shop,
        instructions=_INSTRUCTIONS,
        toolsets=[build_tools(support, shop, gate, asks_first=True)],
        capabilities=[Durable[Shop]()],
    )
    app = App(f"sqlite:///{folder}/chat.db", worker=WorkerOptions(name=name))

    @app.turn(version=1)
    async def answer(context: Context, turn: Turn) -> str:  # pyright: ignore[reportUnusedFunction]
        del context  # the agent finds the run by itself
        history = await history_of(turn)
        return (await agent.run(message_history=history, deps=shop)).output

    return app


def _model(name: str | None) -> Model:
    try:
        return scripted() if name is None else infer_model(name)
    except (UserError, ImportError, ValueError) as error:
        raise CommandError(f"--model {name}: {error}") from error


def _tell_nobody(report: Report) -> None:
    del report
