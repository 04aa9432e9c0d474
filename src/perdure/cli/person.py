from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from perdure import ReceiptStore
from perdure.cli.effects import effects
from perdure.cli.parser import build_parser
from perdure.cli.place import place_of
from perdure.cli.receipt import short_key
from perdure.cli.screen import Screen
from perdure.effects.receipt import Receipt, ReceiptState

if TYPE_CHECKING:
    from perdure.demo.shop import Shop

_NAME: Final = "demo"


class Person:
    """Stands for the person who settles what nobody knows, by commands that one would type."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        from perdure.demo.shop import Shop

        self._url = f"sqlite:///{folder}/runs.db"
        self._shop: Shop = Shop(folder / "shop.db")
        self._screen = screen
        self._hidden = _Hidden(as_json=True)

    async def settle_all(self) -> int:
        """Look at each effect in doubt and at the shop's book, and settle it; return how many.

        Durable when it returns: the decisions, as the command writes them.
        """
        count = 0
        while (receipt := await self._doubtful()) is not None:
            self._screen.line()
            await self._type(self._show(receipt))
            self._screen.line(f"\nthe shop's book: {self._book()}")
            await self._type([*await self._decision(receipt), "--by", _NAME])
            count += 1
        return count

    async def commands(self) -> list[str]:
        """Return what to type about an effect in doubt: to look, and then to settle it."""
        receipt = await self._doubtful()
        if receipt is None:
            return []
        return [typed(self._show(receipt)), typed(await self._decision(receipt))]

    async def look(self) -> None:
        """Show an effect in doubt, as the command does, and what the shop's book says of it."""
        receipt = await self._doubtful()
        if receipt is not None:
            await self._type(self._show(receipt))
            self._screen.line(f"\nthe shop's book: {self._book()}")

    async def _doubtful(self) -> Receipt | None:
        found = [r for r in await self._receipts() if r.state is ReceiptState.AMBIGUOUS]
        return found[-1] if found else None

    async def _receipts(self) -> Sequence[Receipt]:
        from perdure.demo.story import RUN_ID

        async with ReceiptStore(self._url, create=False) as store:
            return await store.list(run_id=RUN_ID)

    def _show(self, receipt: Receipt) -> list[str]:
        return ["effects", "show", short_key(receipt), "--url", self._url]

    async def _decision(self, receipt: Receipt) -> list[str]:
        """Return the command by which a person settles it who looked at the shop's book."""
        from perdure.demo.story import refunded

        paid = self._shop.book()
        known = sum(r.state is ReceiptState.COMPLETED for r in await self._receipts())
        said, why = ["--did-not-land"], "the book does not have it"
        if len(paid) > known:
            said = ["--landed", msgspec.json.encode(refunded(*paid[-1])).decode()]
            why = "the book has it"
        words = ["effects", "settle", short_key(receipt), "--url", self._url, *said]
        return [*words, "--why", why, "--expect-version", str(receipt.version)]

    def _book(self) -> str:
        entries = [
            f"a refund of {cents} cents for order {order}" for order, cents in self._shop.book()
        ]
        return " and ".join(entries) or "nothing was refunded"

    async def _type(self, words: Sequence[str]) -> None:
        self._screen.line(f"$ {typed(words)}")
        options = build_parser().parse_args(words)
        screen = self._hidden if self._screen.as_json else self._screen
        screen.place = place_of(options)
        await effects(options, screen)


class _Hidden(Screen):
    """A screen that shows nothing: the demo has a document of its own."""

    def document(self, value: object) -> None:
        """Write nothing."""


def typed(words: Sequence[str]) -> str:
    """Return a command as it is typed."""
    return f"perdure {shlex.join(words)}"
