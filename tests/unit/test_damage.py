from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perdure import App, Context, RunNeedsAttention
from perdure.errors import StorageCorrupt
from tests.harness import run


def shared_runs(folder: Path) -> App:
    app = App(f"sqlite:///{folder / 'runs.db'}")

    @app.run(version=1)
    async def echo(context: Context, given: list[str]) -> list[str]:
        return given

    return app


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET input_piece = (SELECT max(input_piece) FROM runs)",
        "UPDATE pieces SET parent = piece_number + 1 WHERE parent IS NOT NULL",
        "UPDATE runs SET output_piece = (SELECT max(output_piece) FROM runs)",
        "UPDATE pieces SET data = (SELECT data FROM pieces LIMIT 1)",
    ],
)
def test_documents_whose_pieces_were_mixed_up_are_refused(tmp_path: Path, damage: str) -> None:
    async def main() -> None:
        async with shared_runs(tmp_path) as app:
            for name in ("a", "b"):
                given = [f"{name} {number} {chr(97 + number) * 600}" for number in range(20)]
                await (await app.start("echo", given, run_id=name)).result()
        statements = [damage]
        if "input" in damage:
            statements.append(
                "UPDATE runs SET state = 'pending', output = NULL, finished_at = NULL"
            )
        with sqlite3.connect(tmp_path / "runs.db") as connection:
            for statement in statements:
                connection.execute(statement)
        async with shared_runs(tmp_path) as app:
            with pytest.raises((StorageCorrupt, RunNeedsAttention), match="database"):
                await app.handle("a").result()

    run(main())


def test_a_result_that_is_gone_is_damage(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared_runs(tmp_path) as app:
            await (await app.start("echo", ["a"], run_id="a")).result()
        with sqlite3.connect(tmp_path / "runs.db") as connection:
            connection.execute("UPDATE runs SET output = NULL")
        async with shared_runs(tmp_path) as app:
            with pytest.raises(StorageCorrupt, match="what run a came to is gone"):
                await app.handle("a").result()

    run(main())
