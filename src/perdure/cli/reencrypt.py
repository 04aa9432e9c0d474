from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.cli.exits import Exit
from perdure.cli.screen import Screen
from perdure.cli.target import KEY_FILE_VARIABLE, naming_the_database, store_of
from perdure.cli.words import number_of
from perdure.engine.reencryption import CLASSES, reencrypt
from perdure.errors import CommandError

_TOLD: Final = 10


class _Work(msgspec.Struct):
    """What was encrypted anew, what is left, and why.

    `alive` are the holders that may have been started with another key, and may write with it.
    """

    done: Mapping[str, int]
    left: Mapping[str, int]
    unreadable: list[str]
    clean: bool
    alive: Sequence[str] = ()


def add_reencrypt(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command and its options to the command line."""
    command = add(
        commands,
        "reencrypt",
        "encrypt all that a database holds with the current key",
        store=True,
    )
    command.add_argument(
        "--plaintext",
        action="store_true",
        help="also what is not encrypted yet: for a database that was in use without encryption",
    )
    command.add_argument(
        "--beside-workers",
        action="store_true",
        help="although workers are alive: all of them, and all other processes on the database,"
        " were started with this key as the current one",
    )
    command.add_argument("--dry-run", action="store_true", help="only count what it would encrypt")
    command.add_argument(
        "--rewrite",
        action="store_true",
        help="then write the whole database anew, so that no fragment of what was there before is"
        " left; others wait meanwhile",
    )


async def reencrypt_all(options: argparse.Namespace, screen: Screen) -> Exit:
    """Encrypt all that a database holds with the current key."""
    screen.need_tables()
    app = store_of(options)
    keyring = app.encryption
    if keyring is None:
        raise CommandError(
            f"with which key? Pass --key-file FILE or set {KEY_FILE_VARIABLE}; `perdure key new"
            " --key-file FILE` makes one"
        )
    # Otherwise somebody who may write to the database could have forgeries encrypted.
    app.encryption = keyring.accepting_plaintext() if options.plaintext else keyring
    with naming_the_database(app):
        async with app.connect(create=False):
            if options.plaintext and not (options.dry_run or options.beside_workers):
                _check_alone(await _alive(app))
            stale = await app.store.count_stale()
            if options.dry_run:
                work = _Work({}, stale, [], clean=False)
            else:
                work = await _encrypt(app, stale, options, screen)
    return _say(work, keyring.current, options, screen)


async def _alive(app: App) -> list[str]:
    return [worker.holder for worker in await app.store.list_workers() if worker.alive]


def _check_alone(alive: Sequence[str]) -> None:
    """Refuse while somebody may go on writing plaintext that nobody could read afterwards."""
    if alive:
        raise CommandError(
            f"{', '.join(alive)} may have been started without the key, and would go on writing"
            " plaintext: stop them first; or, if all of them have the key, pass --beside-workers"
        )


async def _encrypt(
    app: App, stale: Mapping[str, int], options: argparse.Namespace, screen: Screen
) -> _Work:
    done: Counter[str] = Counter()
    unreadable: list[str] = []
    # Looked for before and after: one that was there at any time may have written behind this.
    alive = await _alive(app)
    with screen.progress("encrypting", sum(stale.values())) as advance:
        async for some in reencrypt(app.store):
            done[some.name] += some.count
            unreadable += some.unreadable
            advance(some.count)
    left = await app.store.count_stale()
    alive = [] if options.beside_workers else sorted({*alive, *await _alive(app)})
    # Otherwise the store would open without a key that somebody still writes with.
    whole = not any(left.values()) and not alive
    clean = await app.store.end_resealing(whole=whole, rewrite=options.rewrite)
    return _Work(done, left, unreadable, clean, alive)


def _say(work: _Work, key_id: str, options: argparse.Namespace, screen: Screen) -> Exit:
    left = sum(work.left.values())
    screen.document(
        {
            "dry_run": options.dry_run,
            "key_id": key_id,
            "encrypted": {name: work.done.get(name, 0) for name in CLASSES},
            "left": work.left,
            "unreadable": work.unreadable,
            "clean": work.clean,
            "alive": work.alive,
        }
    )
    if options.dry_run:
        screen.line(f"would encrypt {_counts(work.left)} with {key_id}")
        return Exit.OK
    screen.line(f"encrypted {_counts(work.done)} with {key_id}")
    for message in work.unreadable[:_TOLD]:
        screen.line(message)
    if left:
        screen.line(
            f"{_counts(work.left)} are left: what cannot be read stays as it is, and what was"
            f" written meanwhile without this key takes another `perdure reencrypt{screen.place}`,"
            " once every process has it as its current one"
        )
        return Exit.NOT_WELL
    if work.alive:
        count = len(work.alive)
        screen.line(
            f"all that was there is encrypted with it, but {number_of(count, 'worker')}"
            f" {'is' if count == 1 else 'are'} alive ({', '.join(work.alive)}) and may still write"
            " with another key: keep the other keys, restart every process with this one as its"
            f" current key, and run `perdure reencrypt{screen.place}` again while no worker is"
            " alive; or with --beside-workers, once all of them have been restarted so"
        )
        return Exit.NOT_WELL
    screen.line("everything is encrypted with it, and no other key is needed")
    if not work.clean:
        screen.line(
            "fragments of what was there before may stand where the database is not in use:"
            f" `perdure reencrypt{screen.place} --rewrite` writes it anew, while others wait"
        )
    return Exit.OK


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts.get(name, 0)} {name}" for name in CLASSES)
