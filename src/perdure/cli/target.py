from __future__ import annotations

import contextlib
import importlib
import os
import sys
import sysconfig
import traceback
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import perdure
from perdure import ReceiptStore
from perdure.app import App
from perdure.audit import AuditTable
from perdure.cli.typed import check_text
from perdure.encryption import Keyring
from perdure.errors import (
    CommandError,
    KeyUnavailable,
    SchemaTooNew,
    StorageBusy,
    StorageCorrupt,
    StorageFull,
    StorageReadOnly,
)

URL_VARIABLE: Final = "PERDURE_URL"
KEY_FILE_VARIABLE: Final = "PERDURE_KEY_FILE"

_LIBRARIES: Final = ("stdlib", "platstdlib", "purelib", "platlib")
_UNNAMED: Final = (
    KeyUnavailable,
    SchemaTooNew,
    StorageBusy,
    StorageCorrupt,
    StorageFull,
    StorageReadOnly,
)
"""Errors that say what is wrong with a database and not with which one."""


@contextlib.asynccontextmanager
async def looked_into(options: Namespace, *, create: bool = False) -> AsyncGenerator[App]:
    """Open the store that the options or the environment name, without executing anything.

    Without `create` it has to exist.
    """
    app = store_of(options)
    with naming_the_database(app):
        async with app.connect(create=create):
            yield app


@contextlib.asynccontextmanager
async def receipts_of(app: App) -> AsyncGenerator[ReceiptStore]:
    """Open the receipts of an App's store, to look at them and to settle them; it has to exist.

    What is found or decided is written to the audit of the App, or else to that in the database.
    """
    table = AuditTable(app.store_url)
    try:
        with naming_the_database(app):
            async with ReceiptStore(
                app.store_url, audit=app.audit or table, encryption=app.encryption, create=False
            ) as store:
                yield store
    finally:
        await table.close()


@contextlib.contextmanager
def naming_the_database(app: App) -> Generator[None]:
    """Say in errors of the storage which database they are about."""
    try:
        yield
    except _UNNAMED as error:
        raise type(error)(f"{app.shown_url}: {error}") from error


def store_of(options: Namespace) -> App:
    """Return an App on the store that the options or the environment name."""
    if options.app is not None:
        if options.key_file is not None:
            raise CommandError("an App has its encryption with it: leave --key-file out")
        return load_app(options.app)
    url = options.url or os.environ.get(URL_VARIABLE)
    if not url:
        raise CommandError(
            "which database? Pass --url sqlite:///runs.db or --app MODULE:APP, or set"
            f" {URL_VARIABLE}"
        )
    check_text([url])
    key_file = options.key_file or os.environ.get(KEY_FILE_VARIABLE)
    return App(url, encryption=Keyring.read(key_file) if key_file else None)


def load_app(reference: str) -> App:
    """Import the App that MODULE:APP names, with the current folder on the path.

    What the module prints goes to stderr. Raises `CommandError`.
    """
    module, found = _load(reference, "MODULE:APP, such as shop.agents:app", apps=True)
    if not isinstance(found, App):
        raise CommandError(
            f"{reference} is of type {type(found).__name__}, not a perdure.App; {_apps_in(module)}"
        )
    return found


def load_function(reference: str) -> Callable[..., Any]:
    """Import the function that MODULE:FUNCTION names, as `load_app` does. Raises `CommandError`."""
    _, found = _load(reference, "MODULE:FUNCTION, such as shop.tools:refund")
    if not callable(found):
        raise CommandError(f"{reference} is of type {type(found).__name__}, not a function")
    return found


def _load(reference: str, shape: str, *, apps: bool = False) -> tuple[ModuleType, object]:
    name, colon, attribute = reference.partition(":")
    if not (name and colon and attribute):
        raise CommandError(f"{reference!r} is not {shape}")
    if name.endswith(".py") or "/" in name:
        dotted = name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise CommandError(f"MODULE is a module, not a file: write {dotted}:{attribute}")
    module = _import(name)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = f"; {_apps_in(module)}" if apps else ""
            raise CommandError(f"module {name} has no {attribute!r}{there}")
        found = getattr(found, part)
    return module, found


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandError(
                f"there is no module {error.name!r} in {folder} or on the Python path; run the"
                " command in the folder that holds it, or install it"
            ) from error
        raise CommandError(_raised(name, error)) from error
    except (Exception, SystemExit) as error:  # whatever somebody else's module raises
        raise CommandError(_raised(name, error)) from error


def _raised(name: str, error: BaseException) -> str:
    """Say what the import of a module raised, and where in somebody's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    place = f" in {own[-1].filename}:{own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" in {error.filename}:{error.lineno}"
    return (
        f"module {name} cannot be imported: {type(error).__name__}: {error}{place};"
        f" see all of it with: python -c 'import {name}'"
    )


def _is_library(filename: str) -> bool:
    """Tell whether a file is perdure's, Python's or an installed package's."""
    own = str(Path(perdure.__file__).parent)
    folders = (own, *(sysconfig.get_path(name) for name in _LIBRARIES))
    return filename.startswith(("<frozen", *(f"{folder}{os.sep}" for folder in folders)))


def _apps_in(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, App))
    return f"Apps in it: {', '.join(names)}" if names else "there is no App in it"
