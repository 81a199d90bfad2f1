"""The cache folder: links to plugins are loaded from it, so nobody else may write there."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from . import _safepath

NAME = "nixl-gorail"


def folder() -> Path:
    """A folder for plugin folders: in the user's cache, or in the folder for temporary files if the cache is of no use."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # Relative paths are to be ignored, says the XDG specification. "~" stays itself for a user without a home.
    base = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(base):
        try:
            return _private(Path(base), NAME, 0o022)
        except OSError:
            pass
    base = tempfile.gettempdir()
    try:
        return _private(Path(base), f"{NAME}-{os.geteuid()}", 0o077)
    except OSError as e:
        raise PermissionError(f"no folder for links to plugins: {e}; set XDG_CACHE_HOME to a folder that only you can write") from e


def _private(base: Path, name: str, barred: int) -> Path:
    _safepath.trusted(base, make=0o700)
    path = base / name
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} is not a folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & barred:
        raise PermissionError(f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):o})")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written")
    return path
