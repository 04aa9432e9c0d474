from __future__ import annotations

from pathlib import Path

import pytest

from perdure import App, Context, RunNeedsAttention
from perdure.journal import Binding, Handlers, OperationKind
from perdure.journal.payloads import EventRequest, EventSource
from perdure.runtimes.embedded import EmbeddedRuntime
from tests.harness import RUN, app_on, run

pytestmark = pytest.mark.usefixtures("storage")


def telling(folder: Path, handlers: Handlers) -> App:
    """Return an App whose one run tells of an event through handlers."""
    app = app_on(folder)

    @app.run(version=1)
    async def tell(context: Context) -> str:
        binding = Binding(
            run_id=context.run_id,
            runtime=EmbeddedRuntime(context, handlers),
            handler_ids={OperationKind.EVENT_DELIVERY: "feed"},
        )
        event = EventRequest(
            source=EventSource.APPLICATION, parent_sequence=1, event_index=0, event_json="{}"
        )
        await binding.event_delivery("told", 1, event)
        return "told"

    return app


def test_a_run_without_a_handler_waits_for_one(tmp_path: Path) -> None:
    told: list[str] = []
    handlers = Handlers()

    @handlers.event_delivery("feed")
    async def feed(event: EventRequest) -> None:
        told.append(event.event_json)

    async def main() -> None:
        async with telling(tmp_path, Handlers()) as app:
            with pytest.raises(RunNeedsAttention, match="'feed' is registered") as needs:
                await (await app.start("tell", run_id=RUN)).result()
            assert needs.value.code == "MissingHandler"
        async with telling(tmp_path, handlers) as app:
            await app.resume(RUN)
            assert await app.handle(RUN).result() == "told"
            assert told == ["{}"]

    run(main())
