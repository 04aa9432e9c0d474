from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Final

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.target import looked_into
from perdure.engine.retention import Expiry, Retention, check_blobs, collect
from perdure.errors import BlobsUnavailable, CommandError

CLASSES: Final = ("runs", "receipts", "tombstones", "audit", "workers", "sessions")

_UNUSED_SHARE: Final = 0.25
_WORTH_REWRITING_BYTES: Final = 16 * 1024 * 1024


async def gc(options: argparse.Namespace, screen: Screen) -> Exit:
    """Delete what is over for longer than it is kept."""
    screen.need_tables()
    days = {f"{name}_days": getattr(options, f"{name}_days") for name in CLASSES}
    retention = Retention(**days)
    async with looked_into(options) as app:
        expiry = retention.at(app.store.clock.now())
        await _check_blobs(app, "would be" if options.dry_run else "was")
        expired = await app.store.count_expired(expiry)
        gone: Mapping[str, int] = expired
        if not options.dry_run:
            gone = await _collect(app, expiry, sum(expired.values()), screen)
        advice = await _advice(app)
    counts = {name: gone.get(name, 0) for name in CLASSES}
    screen.document({"dry_run": options.dry_run, "deleted": counts, "advice": advice})
    did = "would delete" if options.dry_run else "deleted"
    screen.line(f"{did} {', '.join(f'{counts[name]} {name}' for name in CLASSES)}")
    if advice:
        screen.line(advice)
    return Exit.OK


async def _check_blobs(app: App, be: str) -> None:
    """Refuse to delete, or to say what would be, where not all of it could be deleted."""
    try:
        await check_blobs(app.store)
    except BlobsUnavailable as error:
        raise CommandError(f"nothing {be} deleted, because {error}") from error
    if app.blobs is None and await app.store.holds_blobs():
        raise CommandError(
            f"nothing {be} deleted, because some of what is in this database stands in a blob"
            " store, which was not given and could not be cleared of it: name the App that has it"
            " with --app MODULE:APP"
        )


async def _collect(app: App, expiry: Expiry, expected: int, screen: Screen) -> Mapping[str, int]:
    gone: Counter[str] = Counter()
    with screen.progress("deleting", expected) as advance:
        async for some in collect(app.store, expiry):
            gone.update(some)
            advance(sum(some[name] for name in CLASSES))
    return gone


async def _advice(app: App) -> str:
    """Say what gives the disk back what was deleted, where that is worth the while."""
    facts = (await app.store.examine()).facts
    unused, size = facts.get("unused_bytes"), facts.get("file_bytes")
    if not isinstance(unused, int) or not isinstance(size, int):
        return ""
    if unused < max(_WORTH_REWRITING_BYTES, _UNUSED_SHARE * size):
        return ""
    return (
        f"{unused} of {size} bytes of the file are unused: SQLite writes new runs there, and"
        " VACUUM, while no worker runs, gives them back to the disk"
    )
