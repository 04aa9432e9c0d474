from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import perdure
from tests.architecture.source import SRC

ROOT = Path(__file__).parents[2]


def test_public_names_are_few_sorted_and_real() -> None:
    names = list(perdure.__all__)
    assert names == sorted(set(names))
    assert 0 < len(names) <= 30
    missing = [name for name in names if not hasattr(perdure, name)]
    assert missing == []


def test_importing_perdure_loads_only_itself_msgspec_and_the_standard_library() -> None:
    code = (
        "import json, sys, msgspec; before = set(sys.modules); import perdure;"
        " print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = json.loads(done.stdout)
    assert "perdure.journal.record" in modules
    assert "perdure.journal.payloads" not in modules
    loaded = {name.split(".")[0] for name in modules}
    assert loaded - set(sys.stdlib_module_names) - {"perdure", "msgspec"} == set()


def test_the_package_is_typed_and_needs_only_msgspec() -> None:
    assert (SRC / "py.typed").exists()
    assert [_name(line) for line in _project()["dependencies"]] == ["msgspec"]


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", pin)] == []
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    extras = _project()["optional-dependencies"]
    direct = {
        _name(line)
        for group in [_project()["dependencies"], *extras.values(), *groups.values()]
        for line in group
        if isinstance(line, str)
    }
    assert direct - {"perdure"} - {_name(pin) for pin in pins} == set()


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return found.group().lower()
