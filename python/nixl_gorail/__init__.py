"""GORAIL, a network backend for NVIDIA NIXL.

    import nixl_gorail
    nixl_gorail.enable()                  # before nixl is imported

    from nixl._api import nixl_agent, nixl_agent_config
    agent = nixl_agent("name", nixl_agent_config(backends=["GORAIL"]))
"""

from __future__ import annotations

from ._nixl import nixl_api
from ._plugin_dir import GorailError, enable, plugin_dir

__all__ = ["GorailError", "__version__", "enable", "nixl_api", "plugin_dir"]

__version__: str


def __getattr__(name: str) -> str:
    # On demand: importlib.metadata is slow to import.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._files import version

    return version()
