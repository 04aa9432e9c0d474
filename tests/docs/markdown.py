"""What the tests need of a Markdown page: its code blocks, links, headings and prose.

A comment `<!-- run -->` right before a python block has the block executed, in a folder for all
blocks of its page. A comment `<!-- output -->` right before a text block that follows has its text
compared with what the executed block printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> {0,3})(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
_MARK = re.compile(r"^\s*<!--\s*(run|output)\b(?P<rest>.*?)-->\s*$")
_LINK = re.compile(
    r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE
)
_TITLED = re.compile(r"\[[^\]]*\]\(([^)\s]+\.py)\s+\"([^\"]+)\"\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced code block; `mark` is the word of the comment right before it, or empty."""

    path: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.path.name}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A page as its blocks and the text around them; `faults` are marks that mark nothing."""

    path: Path
    blocks: list[Block]
    prose: str
    faults: list[str]

    @property
    def links(self) -> list[str]:
        return [a or b for a, b in _LINK.findall(re.sub(r"`[^`\n]*`", "", self.prose))]

    @property
    def tests(self) -> list[tuple[str, str]]:
        """The files of tests that are linked to, each with the test that the link's title names."""
        return _TITLED.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        return {_slug(heading) for heading in _HEADING.findall(self.prose)}


def read(path: Path) -> Page:
    """Take a page apart."""
    lines = path.read_text("utf-8").splitlines()
    page = Page(path, [], "", [])
    prose: list[str] = []
    mark, number = "", 0
    while number < len(lines):
        line = lines[number]
        number += 1
        opening = _FENCE.match(line)
        if opening:
            start, closing = number, opening["ticks"]
            while number < len(lines) and lines[number].strip() != closing:
                number += 1
            text = "\n".join(lines[start:number]) + "\n"
            page.blocks.append(Block(path, start, opening["language"], mark, text))
            number += 1
            mark = ""
            continue
        found = _MARK.match(line)
        if mark and line.strip():
            page.faults.append(f"{path.name}:{number}: <!-- {mark} --> has no block after it")
            mark = ""
        if found:
            mark = found[1]
            if found["rest"].strip():
                page.faults.append(f"{path.name}:{number}: a mark is one word")
        prose.append(line)
    if mark:
        page.faults.append(f"{path.name}:{number}: <!-- {mark} --> has no block after it")
    return Page(path, page.blocks, "\n".join(prose), page.faults)


def words_before_code(path: Path) -> int:
    """Count the words a reader meets before the first code block; -1 where there is none."""
    head, fence, _ = path.read_text("utf-8").partition("\n```")
    if not fence:
        return -1
    head = re.sub(r"<!--.*?-->|<[^>]+>|!\[[^\]]*\]\([^)]*\)", " ", head, flags=re.DOTALL)
    head = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)
    return sum(any(c.isalnum() for c in word) for word in head.split())


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text).strip())
