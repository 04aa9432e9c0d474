"""What a worker may be called, and what becomes of its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import App, Context, WorkerOptions
from perdure.errors import InvalidOptions
from tests.harness import run
from tests.storages import url_of


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 129, "\ud800"])
def test_a_name_that_cannot_be_shown_in_a_line_is_refused(name: str) -> None:
    with pytest.raises(InvalidOptions, match="a worker's name is 1 to 128 characters") as refused:
        WorkerOptions(name=name)
    assert len(str(refused.value)) < 300


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("name", ["shop/worker 1@host", "../..", "é" * 128])
def test_a_worker_with_any_other_name_works(tmp_path: Path, name: str) -> None:
    app = App(url_of(tmp_path), worker=WorkerOptions(name=name))

    @app.run(version=1)
    async def work(context: Context) -> int:
        return 1

    async def main() -> None:
        async with app:
            assert await (await app.start(work)).result() == 1
            (attempt,) = await app.store.list_attempts((await app.list())[0].run_id)
            assert attempt.worker == name

    run(main())
