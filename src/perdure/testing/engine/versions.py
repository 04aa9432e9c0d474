from __future__ import annotations

from perdure.app import App
from perdure.context import Context
from perdure.engine.store import RunState
from perdure.testing.engine.scene import Gate, Register, Scene, end_of
from perdure.testing.storage.expecting import expect


def _serving(version: int, gate: Gate) -> Register:
    """Return what registers one version of a run that is held at the gate."""

    def serving(app: App) -> None:
        @app.run(version=version)
        async def work(context: Context) -> str:
            await gate((context.run_id, version))
            return f"version {version}"

    return serving


async def a_run_stays_with_its_version(scene: Scene) -> None:
    """Who serves another one leaves it alone; who serves it finishes it."""
    gate = Gate()
    old = await scene.worker(_serving(1, gate))
    first = await old.start("work", run_id=scene.name("old"))
    await gate.reached()
    new = await scene.worker(_serving(2, gate))
    await scene.close(old)
    gate.open()
    second = await new.start("work", run_id=scene.name("new"))
    expect(await end_of(second), "version 2", "a run of the version that is served")
    row = await new.find(first.run_id)
    expect((row.state, row.version), (RunState.PENDING, 1), "a run of the version that is not")
    await scene.worker(_serving(1, gate))
    expect(await end_of(new.handle(first.run_id)), "version 1", "once it is served")
    wanted = [(first.run_id, 1), (second.run_id, 2), (first.run_id, 1)]
    expect(gate.came, wanted, "what was executed")


async def the_newest_version_is_started(scene: Scene) -> None:
    """Unless another one is asked for; one worker serves both."""
    gate = Gate()
    gate.open()

    def both(app: App) -> None:
        _serving(1, gate)(app)
        _serving(2, gate)(app)

    worker, outsider = await scene.worker(both), await scene.outsider(both)
    for app in (worker, outsider):
        expect(await end_of(await app.start("work")), "version 2", "the newest")
        expect(await end_of(await app.start("work", version=1)), "version 1", "the one asked for")
