"""What vLLM lacks on processors, as a plugin of vLLM that its processes load.

Sleep mode: a worker that does what the worker of GPUs does to KV. Sleep takes the KV cache's pages away after its deregistration,
as vLLM does with a GPU's. Waking registers the cache anew. Tensor parallelism: vLLM's own all-reduce in shared memory did not end
on two busy cores. Gloo's takes its place.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAGE, MADV_DONTNEED = 4096, 4


def installed(folder: Path) -> str:
    """Makes a folder with this module as an installed plugin, which all of vLLM's processes load. Returns it, for PYTHONPATH."""
    site = folder / "plugins"
    info = site / "patches-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patches\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\npatches = patches:load\n")
    (site / "patches.py").write_text(Path(__file__).read_text())
    return str(site)


def load() -> None:
    """Takes away the platform's check of sleep mode, and vLLM's own all-reduce."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.platforms.interface import Platform

    Platform.is_sleep_mode_available = lambda self: True
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False


def take_pages(cache: torch.Tensor) -> None:
    """The memory's addresses stay, its bytes and pages go."""
    start = -(-cache.data_ptr() // PAGE) * PAGE
    end = (cache.data_ptr() + cache.nbytes) // PAGE * PAGE
    cache.zero_()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "madvise")


def __getattr__(name: str) -> type:
    # On demand: the plugin is loaded before vLLM's modules of workers can be.
    if name != "Worker":
        raise AttributeError(name)
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.v1.worker.cpu_worker import CPUWorker

    class Worker(CPUWorker):
        def sleep(self, level: int = 1) -> None:
            get_kv_transfer_group().unregister_kv_caches()
            for cache in self.model_runner.kv_caches:
                take_pages(cache)

        def wake_up(self, tags: list[str] | None = None) -> None:
            if tags is None or "kv_cache" in tags:
                get_kv_transfer_group().restore_kv_caches()

    return Worker
