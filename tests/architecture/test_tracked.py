from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The patterns are written so that this file does not match itself.
HOSTS = r"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|(deb|security)\.debian\.org"
PATHS = r"(?<![\w.~$}/-])/(root|home|work|Users)/\w|\b[A-Z]:\\+Users\b"
FORBIDDEN = re.compile(f"{HOSTS}|{PATHS}")


def _offences(text: str) -> list[str]:
    lines = enumerate(text.splitlines(), 1)
    return [f"{number}: {line}" for number, line in lines if FORBIDDEN.search(line)]


def test_no_file_names_a_machine_or_a_registry() -> None:
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    files = [ROOT / name for name in listing.split("\0") if name]
    assert ROOT / "pyproject.toml" in files
    found = [
        f"{path.relative_to(ROOT)}:{offence}"
        for path in files
        if path.is_file()
        for offence in _offences(path.read_text("utf-8", errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "index = 'https://py" + "pi.org/simple'",
        "see files.python" + "hosted.org",
        "registry.npm" + "js.org",
        "cd /ho" + "me/me/perdure",
        "path = '/wo" + "rk/main'",
        r"C:\Use" + r"rs\me",
    ],
)
def test_an_offence_is_named(line: str) -> None:
    assert _offences(line) == [f"1: {line}"]


@pytest.mark.parametrize(
    "line", ["https://example.com/home/x", "pypi-like", "src/work/x", "/tmp/x"]
)
def test_ordinary_lines_pass(line: str) -> None:
    assert _offences(line) == []
