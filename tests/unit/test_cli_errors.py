from __future__ import annotations

import importlib
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import App, errors
from perdure.cli import main
from perdure.cli.exits import MEANINGS, Exit, exit_of
from perdure.cli.words import duration, size

ROOT = Path(__file__).parents[2]
PROGRAM = """
from perdure import App
app = App("sqlite:///runs.db")
empty = app
number = 3

@app.run(version=1)
async def double(context, number):
    return 2 * number
"""
MODULES = {
    "cli_shop": PROGRAM,
    "cli_declares": (
        "from perdure import App, effect\n\n@effect(timeout_seconds=1)\n"
        "def slow() -> None: ...\napp = App('sqlite:///runs.db')"
    ),
    "cli_spells": "from perdure import effect\n\nTERMS = effect(\n    support='once')",
    "cli_raises": "print('on the way')\nraise RuntimeError('no key')",
    "cli_syntax": "def f(:",
    "cli_lacks": "import cli_no_such_thing",
    "cli_exits": "import sys\nsys.exit(3)",
    "cli_bare": "from perdure import App\napp = App('sqlite:///runs.db')",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PERDURE_URL", raising=False)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def _make_database() -> None:
    assert main(["start", "cli_shop:app", "double", "1", "--id", "one"]) == 0


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("frob", 2, "invalid choice: 'frob'"),
        ("runs --frob", 2, "unrecognized arguments: --frob; see perdure runs --help"),
        ("effects show x --frob", 2, "arguments: --frob; see perdure effects show --help"),
        ("--frob runs", 2, "unrecognized arguments: --frob; see perdure --help"),
        ("runs --limit 0", 2, "'0' is not a number above 0"),
        ("runs --state odd", 2, "invalid choice: 'odd'"),
        ("worker cli_shop:app --lease-seconds inf", 2, "'inf' is not a number above 0"),
        ("show", 2, "required: RUN"),
        ("runs", 2, "Pass --url sqlite:///runs.db or --app MODULE:APP, or set PERDURE_URL"),
        ("runs --url sqlite:///a.db --app b:c", 2, "not allowed with argument"),
        ("runs --url mysql://x", 2, "not a URL that perdure can open"),
        ("gc --runs-days x --url sqlite:///runs.db", 2, "it is 0 or more days, or forever"),
        ("runs --url sqlite:///none.db", 3, "there is no database at none.db"),
        ("show two --url sqlite:///runs.db", 3, "there is no run 'two'"),
        ("cancel two --url sqlite:///runs.db", 3, "there is no run 'two'"),
        ("start cli_shop:app triple 1", 3, "no run function 'triple'"),
        ("start cli_shop:app double 1 --version 2", 3, "no run function 'double@2'"),
        ("start cli_shop:app double {", 2, "the input '{' is not JSON"),
        ("start cli_shop:app double NaN", 2, "the input 'NaN' is not JSON"),
        ('start cli_shop:app double {"a":1,"a":2}', 2, "stands twice in one object"),
        ("start cli_shop:app double \udcff", 2, r"'\udcff' has bytes in it that are not UTF-8"),
        ("runs --url sqlite:///\udcff.db", 2, r"'sqlite:///\udcff.db' has bytes in it"),
        ("start cli_shop:app double 1 --id a/b", 2, "the run id 'a/b' is not an identifier"),
        ("start cli_shop double", 2, "'cli_shop' is not MODULE:APP"),
        ("start ./cli_shop.py:app double", 2, "write cli_shop:app"),
        ("start cli_none:app double", 2, "there is no module 'cli_none'"),
        ("start cli_shop.deeper:app double", 2, "there is no module 'cli_shop.deeper' in"),
        ("start cli_shop:ap double", 2, "has no 'ap'; Apps in it: app, empty"),
        ("start cli_shop:number double", 2, "cli_shop:number is of type int, not a perdure.App"),
        ("start cli_raises:app double", 2, "RuntimeError: no key in {folder}/cli_raises.py:2"),
        (
            "start cli_declares:app double",
            2,
            "InvalidFunction: slow ({folder}/cli_declares.py:3): it runs in a thread",
        ),
        ("start cli_declares:app double", 2, "an async function in {folder}/cli_declares.py:3;"),
        ("start cli_spells:app double", 2, "not 'once' in {folder}/cli_spells.py:3;"),
        ("start cli_syntax:app double", 2, "cli_syntax.py:1"),
        ("start cli_lacks:app double", 2, "No module named 'cli_no_such_thing' in {folder}"),
        ("start cli_exits:app double", 2, "module cli_exits cannot be imported: SystemExit: 3"),
        ("worker cli_bare:app", 2, "cli_bare:app has no run functions"),
        ("demo --kill-at lunch", 2, "invalid choice: 'lunch'"),
        ("demo --keep .", 2, "give --keep a new or an empty folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    line: str, code: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _make_database()
    message = message.replace("{folder}", str(tmp_path))
    capsys.readouterr()
    assert main(line.split()) == code
    out, err = capsys.readouterr()
    said = err.removeprefix("on the way\n")
    assert (out, said.count("\n"), said[:9]) == ("", 1, "perdure: ")
    assert message in said

    sys.modules.pop("cli_raises", None)
    assert main([*line.split(), "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert message in error["message"]
    assert error["exit_code"] == code
    assert issubclass(getattr(errors, error["code"]), errors.PerdureError)


def test_the_name_of_a_database_is_a_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERDURE_URL", "sqlite:///\udcff.db")
    assert main(["runs"]) == 2
    assert "are not UTF-8" in capsys.readouterr().err


def test_a_database_that_cannot_be_used_is_told_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _make_database()
    with sqlite3.connect(tmp_path / "runs.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert main(["doctor", "--app", "cli_shop:app"]) == 4
    assert "upgrade perdure" in capsys.readouterr().err
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as one" * 9)
    assert main(["runs", "--url", "sqlite:///text.db"]) == 4
    told = capsys.readouterr().err
    assert told.startswith("perdure: sqlite:///text.db: the file is not a database that perdure")


def _without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Make it as if a distribution was not installed, whoever imported it before."""
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)


@pytest.mark.parametrize(
    ("line", "code", "member"),
    [("runs", 0, "runs"), ("show one", 0, "run"), ("doctor", 1, "findings")],
)
def test_without_rich_only_tables_are_missing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    code: int,
    member: str,
) -> None:
    _without(monkeypatch, "rich")
    _make_database()
    monkeypatch.setenv("PERDURE_URL", "sqlite:///runs.db")
    assert main([*line.split(), "--json"]) == code
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[member]
    assert main(line.split()) == 2
    told = capsys.readouterr().err
    assert (told.count("\n"), "pip install 'perdure[cli]'" in told) == (1, True)


@pytest.mark.parametrize("missing", ["pydantic_ai", "pydantic_core"])
def test_without_pydantic_ai_the_adapter_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in ("pydantic_ai", "perdure.adapters.pydantic_ai"):
        _without(monkeypatch, name)
        monkeypatch.delitem(sys.modules, name)
    _without(monkeypatch, missing)
    with pytest.raises(errors.MissingExtra, match=r"pip install 'perdure\[pydantic-ai\]'"):
        importlib.import_module("perdure.adapters.pydantic_ai")


@pytest.mark.parametrize(("missing", "extra"), [("fastmcp", "standard"), ("rich", "cli")])
def test_the_demo_says_what_it_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["demo"]) == 2
    assert f"pip install 'perdure[{extra}]'" in capsys.readouterr().err


def test_a_bug_has_a_code_and_a_traceback_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(App, "find", None)
    assert main(["start", "cli_shop:app", "double", "1"]) == Exit.BUG
    assert "Traceback" in capsys.readouterr().err


def test_the_exit_codes_are_in_the_help_and_in_the_manual(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    manual = (ROOT / "docs" / "cli.md").read_text("utf-8").replace("`", "")
    for code in Exit:
        assert MEANINGS[code] in shown
        assert f"| {code.value} | {MEANINGS[code]} |" in manual


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.USAGE
    assert "doctor" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("perdure 0.")


def test_a_storage_error_of_any_kind_is_one_of_the_storage() -> None:
    assert exit_of(errors.StorageFull("x")) == Exit.STORAGE
    assert exit_of(errors.StorageMissing("x")) == Exit.NOT_FOUND
    assert exit_of(errors.InvalidPayload("x")) == Exit.USAGE


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0.0124, "12 ms"), (3.44, "3.4 s"), (125, "2 min 5 s"), (11_045, "3 h 4 min")],
)
def test_durations_read_well(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words
    assert duration(2.5 * 86_400) == "2 d 12 h"


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (2_500_000, "2.5 MB")]
)
def test_sizes_read_well(count: int, words: str) -> None:
    assert size(count) == words
