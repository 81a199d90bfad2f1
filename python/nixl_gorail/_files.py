"""The files of this package: the plugin, the tool, the version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Optional

PLUGIN = "libplugin_GORAIL.so"
_PACKAGE = Path(__file__).resolve().parent


def source_tree() -> Optional[Path]:
    """The root of the source tree that this package is in, or None if it is installed."""
    root = _PACKAGE.parent.parent
    return root if _PACKAGE.parent.name == "python" and (root / "go.mod").is_file() else None


def version() -> str:
    root = source_tree()
    if root:
        return (root / "VERSION").read_text(encoding="utf-8").strip()
    from importlib.metadata import version as installed

    return installed("nixl-gorail")


def _built() -> List[Path]:
    root = source_tree()
    return [root / "build"] if root else []


def plugin() -> Path:
    """The plugin: in GORAIL_PLUGIN_DIR if that is set, else in this package, else built in the source tree."""
    given = os.environ.get("GORAIL_PLUGIN_DIR")
    folders = [Path(given)] if given else [_PACKAGE / "lib", *_built()]
    return _first([folder / PLUGIN for folder in folders], f"GORAIL_PLUGIN_DIR={given} names a folder without the plugin" if given else "")


def tool() -> Path:
    """The tool gorail: beside the plugin in GORAIL_PLUGIN_DIR, else in this package, else built in the source tree."""
    given = os.environ.get("GORAIL_PLUGIN_DIR")
    folders = [Path(given)] if given else []
    return _first([folder / "gorail" for folder in [*folders, _PACKAGE / "bin", *_built()]], "")


def _first(paths: List[Path], problem: str) -> Path:
    for path in paths:
        if path.is_file():
            return path.absolute()
    tried = ", ".join(str(path) for path in paths)
    raise FileNotFoundError(f"{problem or 'a file of nixl-gorail is missing'}: no {tried}; install nixl-gorail again, or build it (make build)")
