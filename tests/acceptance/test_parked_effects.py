"""An effect that may not happen twice, killed at every point of the run that it is part of."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perdure import App, Context, RunNeedsAttention
from perdure.testing.crash import CrashAt, CrashPoints
from tests.acceptance.children import note, notes, query, run, running

_AT_ONCE = 2 * (os.cpu_count() or 1)


def act(folder: Path, crash: tuple[str, int] | None) -> None:
    """Act once in a run, and note what it came to and which points were passed."""
    points = CrashPoints()
    app = App(f"sqlite:///{folder}/runs.db", probe=CrashAt(*crash) if crash else points)

    async def touch() -> str:
        note(folder / "touches.log")
        return "touched"

    @app.run(version=1)
    async def acting(context: Context) -> str:
        return await context.call(touch)

    try:
        end = app.run_sync(acting, run_id="run-1")
    except RunNeedsAttention as error:
        end = error.code
    note(folder / "ends.log", end=end)
    (folder / "points").write_text(json.dumps(points.crashes()))


def test_an_effect_that_may_have_happened_parks_the_run_and_is_never_called_again(
    tmp_path: Path,
) -> None:
    """T01: killed at every point, and executed twice afterwards."""
    run(tmp_path, act, tmp_path, None)
    crashes = json.loads((tmp_path / "points").read_text())
    points = [point for point, _ in crashes]
    claimed, settled = "commit.done receipt.claim", "commit.done settle call/1"
    doubtful = points[points.index(claimed) : points.index(settled)]
    assert {"effect.send", "operation.call call/1", "operation.called call/1"} < set(doubtful)

    def crash(index: int) -> None:
        folder, point = tmp_path / str(index), points[index]
        folder.mkdir()
        with running(folder, act, folder, crashes[index]) as child:
            child.die()
        touched = len(notes(folder / "touches.log"))
        assert touched == (point in points[points.index("operation.called call/1") :]), point
        for _ in range(2):
            run(folder, act, folder, None)
        parked = point in doubtful
        end = "EffectAmbiguous" if parked else "touched"
        assert [line["end"] for line in notes(folder / "ends.log")] == [end, end], point
        assert len(notes(folder / "touches.log")) == (touched if parked else 1), point
        assert query(folder / "runs.db", "SELECT attempt, state FROM receipts") == [
            (1, "ambiguous" if parked else "completed")
        ]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(crash, range(len(crashes))))
    print(f"killed at all {len(crashes)} points, in doubt after {len(doubtful)}")
