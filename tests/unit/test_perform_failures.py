from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Context,
    OperationFailed,
    effect,
    operation,
)
from tests.harness import (
    Pause,
    app_on,
    finish,
    interrupt,
    once,
    run,
)


class KeywordError(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(f"because of {reason}")


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def caused() -> Exception:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        return error


class QuitterError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


FAILURES: dict[str, tuple[Callable[[], Exception], str, str]] = {
    "builtin": (lambda: ValueError("no"), "ValueError", "no"),
    "keyword-only": (lambda: KeywordError(reason="x"), "KeywordError", "because of x"),
    "cause": (caused, "ValueError", "second"),
    "group": (
        lambda: ExceptionGroup("both", [ValueError(1), KeyError(2)]),
        "ExceptionGroup",
        "both (2 sub-exceptions)",
    ),
    "surrogate": (lambda: ValueError("\ud800"), "ValueError", "\\ud800"),
    "no-message": (
        SilentError,
        "SilentError",
        "it has no message: its __str__ raises RuntimeError",
    ),
    "quitter": (QuitterError, "QuitterError", "it has no message: its __str__ raises SystemExit"),
    "odd-module": (type("E", (Exception,), {"__module__": "\ud800"}), "E", ""),
    "odd-name": (type("Größe", (Exception,), {}), "Gr__e", ""),
    "operation": (
        lambda: OperationFailed("k", code="Code", message="m", data={"a": 1}, retryable=True),
        "Code",
        "m",
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    "declare", [operation(read_only=True), effect(rejected=Exception)], ids=["read", "refused"]
)
def test_a_failure_is_the_same_on_the_first_execution_and_on_replay(
    tmp_path: Path, kind: str, asynchronous: bool, declare: Callable[..., Any]
) -> None:
    make, code, message = FAILURES[kind]
    app = app_on(tmp_path)
    calls: list[int] = []
    seen: list[tuple[Any, ...]] = []

    async def main() -> None:
        pause = Pause()

        def fail() -> None:
            calls.append(1)
            raise make()

        async def fail_later() -> None:
            fail()

        failing = declare(fail_later if asynchronous else fail)

        @app.run(version=1)
        async def work(context: Context) -> None:
            try:
                await context.call(failing)
            except OperationFailed as error:
                vars(error).pop("__notes__", None)
                seen.append((type(error), str(error), vars(error)))
            await pause()

        await interrupt(app, pause, work)
        await finish(app)

    run(main())
    assert calls == [1]
    first, second = seen
    assert first == second
    assert (first[2]["code"], first[2]["message"]) == (code, message)


def test_stop_iteration_out_of_a_thread_is_a_failure_and_no_stuck_run(tmp_path: Path) -> None:
    app = app_on(tmp_path)

    @operation(read_only=True)
    def first(numbers: list[int]) -> int:
        return next(iter(numbers))

    @app.run(version=1)
    async def work(context: Context) -> None:
        with pytest.raises(OperationFailed, match="the function raised StopIteration"):
            await context.call(first, [])

    run(once(app, work))
