"""Checks over a folder of documentation; each returns what is wrong, one line a fault."""

from __future__ import annotations

import ast
import contextlib
import io
import runpy
from pathlib import Path

from tests.docs.markdown import Block, Page, read, words_before_code

README_LINES = 150
README_WORDS = 60


def pages(root: Path) -> list[Page]:
    """Read the pages at the top of `root` and all under its docs folder."""
    paths = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
    return [read(path) for path in paths]


def readme_faults(root: Path) -> list[str]:
    """Name what keeps a stranger from the first command of the README."""
    readme = root / "README.md"
    faults: list[str] = []
    lines = len(readme.read_text("utf-8").splitlines())
    if lines >= README_LINES:
        faults.append(f"README.md: {lines} lines; keep it under {README_LINES}")
    words = words_before_code(readme)
    if words < 0:
        faults.append("README.md: no command to try")
    elif words > README_WORDS:
        faults.append(f"README.md: {words} words before the first command, over {README_WORDS}")
    return faults


def block_faults(root: Path) -> list[str]:
    """Name the python blocks that do not compile, and the marks that mark nothing."""
    faults = [fault for page in pages(root) for fault in page.faults]
    for block in (block for page in pages(root) for block in page.blocks):
        if block.mark == "run" and block.language != "python":
            faults.append(f"{block.where}: only python blocks are run")
        if block.language == "python":
            try:
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                compile(block.text, block.where, "exec", flags, dont_inherit=True)
            except SyntaxError as error:
                faults.append(f"{block.where}: line {error.lineno} of the block: {error.msg}")
    return faults


def link_faults(root: Path) -> list[str]:
    """Name the links inside the project that lead nowhere."""
    faults: list[str] = []
    for page in pages(root):
        for link in page.links:
            if "://" in link or link.startswith("mailto:"):
                continue
            target, _, anchor = link.partition("#")
            path = (page.path.parent / target) if target else page.path
            if not path.exists():
                faults.append(f"{page.path.name}: {link}: no such file")
            elif anchor and path.suffix == ".md" and anchor not in read(path).anchors:
                faults.append(f"{page.path.name}: {link}: no such heading")
    return faults


def test_faults(root: Path) -> list[str]:
    """Name the tests that a page links to by name and that are not there."""
    return [
        f"{page.path.name}: there is no {name} in {link}"
        for page in pages(root)
        for link, name in page.tests
        if f"def {name}(" not in (page.path.parent / link).read_text("utf-8")
    ]


def runnable(page: Page) -> list[tuple[Block, str | None]]:
    """Pair each block to run with the output that the page promises, or None."""
    pairs: list[tuple[Block, str | None]] = []
    for number, block in enumerate(page.blocks):
        if block.mark == "run":
            after = page.blocks[number + 1 : number + 2]
            promised = after[0].text if after and after[0].mark == "output" else None
            pairs.append((block, promised))
    return pairs


def run(block: Block, folder: Path) -> str:
    """Execute a block as a program in `folder` and return what it printed."""
    script = folder / "block.py"
    script.write_text(block.text, "utf-8")
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()
