"""Programs that show how agents use NIXL, and how a program starts with GORAIL. Each runs from any folder: python -m nixl_gorail.examples.kv_blocks"""

import os
import sys

from .. import GorailError, enable


def find_gorail(backend):
    """Lets NIXL find GORAIL, if it is the backend and NIXL would not. Each example calls it first, before NIXL is imported."""
    folder = os.environ.get("NIXL_PLUGIN_DIR")
    if backend == "GORAIL" and not (folder and os.path.exists(os.path.join(folder, "libplugin_GORAIL.so"))):
        try:
            enable()
        except GorailError as error:
            sys.exit(f"error: {error}")
