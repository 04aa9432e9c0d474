"""The packages of a folder from npm, and what esbuild makes of the page there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services import lacking

_SECONDS = 300.0
_INSTALL = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
_BUNDLE = (
    *("app.jsx", "--bundle", "--minify", "--format=esm", "--jsx=automatic", "--outfile=app.js"),
    '--define:process.env.NODE_ENV="production"',
)


def bundled(source: Path) -> Path:
    """Return a folder with the files of a page and its `app.js`; made once for these files.

    Skips the test where that cannot be, as for any other service.
    """
    npm = shutil.which("npm")
    if npm is None:
        lacking("needs Node.js with npm, such as Debian's packages nodejs and npm")
    files = sorted(path for path in source.iterdir() if path.is_file())
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    name = f"perdure-{source.name}-{os.getuid()}-{digest}"
    folder = Path(tempfile.gettempdir()) / name
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for path in files:
                shutil.copy(path, made)
            said = _run(made, npm, *_INSTALL)
            if said is not None:
                lacking(f"needs the packages of {source.name} from npm: {said}")
            said = _run(made, "node_modules/esbuild/bin/esbuild", *_BUNDLE)
            assert said is None, said
            shutil.rmtree(made / "node_modules")
            try:
                made.rename(folder)
            except OSError:
                assert folder.exists()  # another test run was faster
    return folder


def _run(folder: Path, *words: str) -> str | None:
    """Run a command in a folder; return the end of what it said if it failed."""
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False, timeout=_SECONDS)
    return done.stderr.decode(errors="replace")[-2000:] if done.returncode else None
