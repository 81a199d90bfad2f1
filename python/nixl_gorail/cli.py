"""The console scripts gorail and gorail-env."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from ._files import tool
from ._plugin_dir import VARIABLE, GorailError, plugin_dir


def gorail() -> None:
    """Becomes the tool."""
    try:
        path = str(tool())
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"gorail: {e}")


def env() -> None:
    """Prints the line that lets a program find GORAIL: eval $(gorail-env)."""
    parser = argparse.ArgumentParser(prog="gorail-env", description="Prints the export line of NIXL_PLUGIN_DIR for this Python environment.")
    parser.add_argument("--as", dest="names", metavar="NAME,...", default="", help="further names for GORAIL, such as UCX")
    names = parser.parse_args().names
    try:
        path = plugin_dir([name for name in names.split(",") if name])
    except GorailError as e:
        sys.exit(f"gorail-env: {e}")
    print(f"export {VARIABLE}={shlex.quote(path)}")
