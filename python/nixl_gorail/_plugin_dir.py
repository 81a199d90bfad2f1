"""The folder for NIXL_PLUGIN_DIR. The tool gorail makes the links; this finds what it links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Union

from . import _cache, _files, _nixl

VARIABLE = "NIXL_PLUGIN_DIR"
TIMEOUT = 120  # seconds; the tool itself waits 60 s for its turn

Names = Union[str, Iterable[str]]


class GorailError(RuntimeError):
    """No folder could be made, or it would come too late."""


def plugin_dir(as_names: Names = ()) -> str:
    """A folder for NIXL_PLUGIN_DIR with GORAIL and this environment's own NIXL plugins and telemetry exporters.

    as_names are further names for GORAIL, such as "UCX". The folder is in a cache, and it is brought up to date by each
    call. Many processes may call this at once.
    """
    return str(_make(as_names)["plugins"])


def enable(as_names: Names = (), log: bool = True) -> str:
    """Sets NIXL_PLUGIN_DIR for this process and its children, so that NIXL finds GORAIL. Returns the folder.

    Call it before nixl is imported. With log it says on stderr what it did, in one line.
    """
    before = os.environ.get(VARIABLE)
    late = _nixl.loaded()
    if late and before is None:
        raise _too_late(late, "is not set")
    made = _make(as_names)
    path = str(made["plugins"])
    if late and before != path:
        raise _too_late(late, f"is {before}, not {path}")
    os.environ[VARIABLE] = path
    if log:
        print(f"nixl_gorail: {VARIABLE}={path}: {_describe(made)}", file=sys.stderr, flush=True)
    return path


def _too_late(late: List[str], state: str) -> GorailError:
    return GorailError(
        f"nixl_{late[0]} is already imported, and {VARIABLE} {state}: call nixl_gorail.enable() before nixl is imported, "
        "or set the variable for the whole program: eval $(gorail-env)"
    )


def _describe(made: Dict[str, Any]) -> str:
    names = ["GORAIL", *(f"GORAIL as {name}" for name in made["aliases"] or [])]
    why = f" ({made['why']})" if made["why"] else ""
    return f"{', '.join(names)}, and {', '.join(made['stock'] or []) or 'no other plugin'} of {made['source']}{why}"


def _make(as_names: Names) -> Dict[str, Any]:
    names = [as_names] if isinstance(as_names, str) else list(as_names)
    try:
        nixl = _nixl.find()
        command = [str(_files.tool()), "plugins", "--json", "--cache", str(_cache.folder()), "--plugin", str(_files.plugin())]
    except (OSError, ModuleNotFoundError) as e:
        raise GorailError(str(e)) from e
    env = dict(os.environ)
    if nixl:
        env["NIXL_WHEEL_DIR"] = nixl.site
        if nixl.variant.startswith("cu"):
            command += ["--cuda", nixl.variant[2:]]
    elif VARIABLE not in env and "NIXL_WHEEL_DIR" not in env:
        raise GorailError(f"no NIXL in this Python environment ({sys.prefix}): pip install nixl")
    for name in names:
        command += ["--as", name]
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise GorailError(f"{command[0]}: {e}") from e
    if done.returncode:
        raise GorailError(done.stderr.strip() or f"{command[0]} ended with status {done.returncode}")
    made: Dict[str, Any] = json.loads(done.stdout)
    if nixl and made["why"].startswith("--cuda"):
        made["why"] = nixl.why
    return made
