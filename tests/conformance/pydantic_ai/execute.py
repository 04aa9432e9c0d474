"""Execute the scenario, buffered and streamed, in a process: `python -m … FOLDER leave|finish`."""

from __future__ import annotations

import asyncio
import json
import sys

from perdure.app import App
from perdure.context import Context
from tests.conformance.pydantic_ai.scenario import Shop


async def execute(database: str, *, streamed: bool, leave: bool) -> dict[str, object]:
    """Run the scenario; with `leave`, close the App when it is done but for its return."""
    app = App(f"sqlite:///{database}")
    shop = Shop(streamed=streamed)
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @app.run(version=1)
    async def turn(context: Context) -> None:
        result = await shop.turn(context)
        done.set_result(result.all_messages_json().decode())
        if leave:
            await asyncio.Event().wait()

    async with app:
        handle = await app.start(turn, run_id="turn-1")
        if not leave:
            await handle.result()
        history = await done
        steps = await app.store.list_operations("turn-1")
    places = sorted((row.step_id, row.sequence) for row in steps)
    return {"history": history, "done": dict(shop.done), "places": places}


if __name__ == "__main__":
    _, folder, ending = sys.argv
    reports = {
        kind: asyncio.run(
            execute(f"{folder}/{kind}.db", streamed=kind == "streamed", leave=ending == "leave")
        )
        for kind in ("buffered", "streamed")
    }
    print(json.dumps(reports))
