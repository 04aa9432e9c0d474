from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import checks
from tests.docs.markdown import read

ROOT = Path(__file__).parents[2]
Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [
    checks.readme_faults,
    checks.block_faults,
    checks.link_faults,
    checks.test_faults,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_documentation_is_sound(check: Check) -> None:
    assert check(ROOT) == []


def test_marked_blocks_run_and_print_what_they_promise(tmp_path: Path) -> None:
    """All blocks of a page run in one folder, as a reader would have it."""
    for page in checks.pages(ROOT):
        folder = tmp_path / page.path.stem
        folder.mkdir()
        for block, promised in checks.runnable(page):
            printed = checks.run(block, folder)
            if promised is not None:
                assert printed.strip() == promised.strip(), block.where


def test_the_changelog_knows_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    heading = rf"^## \[{re.escape(project['version'])}\]"
    assert re.search(heading, (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    ("check", "text", "message"),
    [
        (checks.readme_faults, "# perdure\n\nNothing to try.\n", "no command to try"),
        (checks.readme_faults, "word " * 61 + "\n\n```sh\nls\n```\n", "61 words before"),
        (checks.readme_faults, "\n```sh\nls\n```\n" + "line\n" * 147, "151 lines"),
        (checks.block_faults, "text\n\n```python\nx = \n```\n", "README.md:3: line 1"),
        (checks.block_faults, "<!-- run -->\n\n```sh\nls\n```\n", "only python blocks are run"),
        (checks.block_faults, "<!-- run -->\ntext\n\n```python\n1\n```\n", "no block after it"),
        (checks.block_faults, "<!-- run twice -->\n```python\n1\n```\n", "a mark is one word"),
        (checks.block_faults, "<!-- run -->\n", "no block after it"),
        (checks.link_faults, "see [it](docs/none.md)", "docs/none.md: no such file"),
        (checks.link_faults, "# Top\n\n[a](#top) [b](#bottom)", "#bottom: no such heading"),
        (checks.test_faults, '[it](test_a.py "test_b")', "no test_b in test_a.py"),
        (checks.link_faults, "[it]\n\n[it]: none.md", "none.md: no such file"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, check: Check, text: str, message: str) -> None:
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "test_a.py").write_text("def test_a(): ...")
    (fault,) = check(tmp_path)
    assert message in fault


def test_a_sound_page_has_no_faults(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "runs.md").write_text("## Start a run\n\n[home](../README.md#perdure)\n")
    (tmp_path / "README.md").write_text(
        "# perdure\n\n<!-- a comment -->[runs](docs/runs.md#start-a-run) ![badge](https://x.y/z)\n"
        + "word " * 58
        + "\n\n```python\nawait f('[not](a-link)')\n```\n"
    )
    assert [fault for check in CHECKS for fault in check(tmp_path)] == []


def test_a_block_is_run_in_the_given_folder_and_its_output_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run -->\n```python\nopen('here', 'w').close()\nprint(6 * 7)\n```\n\nprints\n\n"
        "<!-- output -->\n```text\n42\n```\n\n```python\nraise SystemExit\n```\n"
    )
    ((block, promised),) = checks.runnable(read(page))
    assert checks.run(block, tmp_path) == promised == "42\n"
    assert (tmp_path / "here").exists()
