"""The quick start of the README: killed in the middle of its tool, it goes on as it says."""

from __future__ import annotations

import os
import runpy
import signal
from pathlib import Path
from typing import Any

from perdure.testing.scripted import Call, Reply, ScriptedModel
from tests.acceptance.children import note, notes, run, running
from tests.docs.markdown import read

README = Path(__file__).parents[2] / "README.md"


def play(folder: Path) -> None:
    """Run the quick start with a scripted model, and die in its first refund."""
    os.chdir(folder)

    def refund(order: str, operation: Any) -> str:
        note(folder / "refunds.log", key=operation.operation_key)
        if len(notes(folder / "refunds.log")) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"refunded {order}"

    (block,) = [block for block in read(README).blocks if "def refund(" in block.text]
    program = block.text
    for what, instead in (
        ('"openai:gpt-5"', "MODEL"),
        ('return f"refunded {order}"', "return REFUND(order, operation)"),
        ("print(await handle.result())", "SAY(await handle.result())"),
    ):
        assert program.count(what) == 1
        program = program.replace(what, instead)
    Path("shop.py").write_text(program)
    model = ScriptedModel([Reply(calls=[Call("refund", {"order": "42"})]), "It is refunded."])
    names = {"MODEL": model, "REFUND": refund, "SAY": Path("answer").write_text}
    runpy.run_path("shop.py", names, "__main__")


def test_the_quick_start_goes_on_when_it_was_killed_in_its_tool(tmp_path: Path) -> None:
    with running(tmp_path, play, tmp_path) as child:
        child.die()
    run(tmp_path, play, tmp_path)
    assert (tmp_path / "answer").read_text() == "It is refunded."
    first, again = notes(tmp_path / "refunds.log")
    assert first["key"] == again["key"]
