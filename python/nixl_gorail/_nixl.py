"""Which of NIXL's wheels this process uses: the choice of NIXL's own package `nixl`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import List, NamedTuple, Optional

# The order in which NIXL's package tries its wheels without CUDA.
VARIANTS = ("cu13", "cu12", "rocm")


class Nixl(NamedTuple):
    variant: str
    site: str  # the site-packages folder
    why: str  # "" if there was no choice


def loaded() -> List[str]:
    """The wheels whose bindings this process has imported."""
    return [v for v in VARIANTS if f"nixl_{v}._bindings" in sys.modules]


def find() -> Optional[Nixl]:
    """The wheel that `import nixl` uses, or has imported, in this process. NIXL itself is not imported."""
    sites = {v: site for v in VARIANTS if (site := _site(f"nixl_{v}"))}
    variant, why = _choose(list(sites))
    return Nixl(variant, sites[variant], why) if variant else None


def nixl_api() -> ModuleType:
    """NIXL's module `nixl._api`, or that of its wheel if `nixl` itself is not installed. Call it after enable(): it imports NIXL."""
    try:
        return importlib.import_module("nixl._api")
    except ModuleNotFoundError as e:
        if e.name != "nixl":
            raise
        wheel = find()
        if wheel is None:
            raise
        return importlib.import_module(f"nixl_{wheel.variant}._api")


def _choose(have: List[str]) -> "tuple[str, str]":
    for variant in loaded():
        if variant in have:
            return variant, "it is imported"
    if len(have) < 2:
        return (have[0] if have else ""), ""
    cuda = cuda_major()
    if cuda is None:
        return have[0], f"without CUDA in this environment, NIXL takes it of {' and '.join(have)}"
    if f"cu{cuda}" not in have:
        raise ModuleNotFoundError(f"this environment is for CUDA {cuda}, and nixl-cu{cuda} is not installed, only nixl-{' and nixl-'.join(have)}")
    return f"cu{cuda}", f"this environment is for CUDA {cuda}"


def _site(package: str) -> str:
    spec = _spec(package)
    if spec is None or not spec.submodule_search_locations:
        return ""
    return os.path.dirname(os.path.abspath(spec.submodule_search_locations[0]))


def _spec(package: str) -> "Optional[importlib.machinery.ModuleSpec]":
    try:
        return importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None


def cuda_major() -> Optional[int]:
    """The CUDA version by which NIXL's package chooses: of imported packages, else of torch's file. Nothing is imported."""
    torch = sys.modules.get("torch")
    for text in (getattr(getattr(torch, "version", None), "cuda", None), getattr(sys.modules.get("cuda.bindings"), "__version__", None)):
        if text:
            return int(str(text).split(".")[0])
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        try:
            return int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
        except Exception:  # cupy without a driver
            pass
    return _torch_on_disk()


def _torch_on_disk() -> Optional[int]:
    spec = _spec("torch")
    if spec is None or not spec.origin:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"""^cuda\s*(?::[^=\n]*)?=\s*['"](\d+)""", text, re.MULTILINE)
    return int(found.group(1)) if found else None
