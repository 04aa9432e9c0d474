from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai import Agent

from perdure import App, Context
from perdure.adapters.pydantic_ai import Budget, Durable
from perdure.errors import BudgetExceeded
from perdure.testing.scripted import Reply, ScriptedModel
from tests.harness import RUN, app_on, run

pytestmark = pytest.mark.usefixtures("storage")


def family(folder: Path, requests: int) -> App:
    """Return an App whose run has two children ask once each, and then asks itself."""
    app = app_on(folder)
    script: list[Reply | str] = ["Yes."]
    helper = Agent(ScriptedModel(script), name="helper", capabilities=[Durable()])
    boss = Agent(
        ScriptedModel(script), name="boss", capabilities=[Durable(budget=Budget(requests=requests))]
    )

    @app.run(version=1)
    async def grandchild(context: Context) -> str:
        del context
        return (await helper.run("hi")).output

    @app.run(version=1)
    async def child(context: Context) -> str:
        below = await context.start_child(grandchild)
        return await below.result() + (await helper.run("hi")).output

    @app.run(version=1)
    async def whole(context: Context) -> str:
        one = await context.start_child(child)
        await one.result()
        try:
            return (await boss.run("hi")).output
        except BudgetExceeded as error:
            return str(error)

    return app


@pytest.mark.parametrize(("requests", "ends"), [(2, "requests"), (3, "Yes.")])
def test_what_runs_below_a_run_have_spent_is_its_own(
    tmp_path: Path, requests: int, ends: str
) -> None:
    async def main() -> None:
        async with family(tmp_path, requests) as app:
            said = await (await app.start("whole", run_id=RUN)).result()
            assert ends in said
        async with family(tmp_path, requests) as app:
            assert (await app.rehearse(RUN)).verdict == "matches"

    run(main())
