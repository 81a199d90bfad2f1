"""One side of LMCache's PD (prefill and decode), over host memory: its PDBackend, as its engine makes it from a file.

argv: a configuration file of LMCache. The KV of a chunk is one object with a key.
"""

import sys
from concurrent.futures import Future
from typing import Any

import torch
from lmcache.integration.vllm.vllm_v1_adapter import DisaggSpec
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.pd_backend import PDBackend
from talk import serve

MODEL, CHUNK = "tiny", 64
SHAPE = torch.Size([2, 4, CHUNK, 256])  # keys and values, layers, tokens, hidden size: 512 KiB in float32

config = LMCacheEngineConfig.from_file(sys.argv[1])
config.validate()
metadata = LMCacheMetadata(
    model_name=MODEL, world_size=1, local_world_size=1, worker_id=0, local_worker_id=0, kv_dtype=torch.float32,
    kv_shape=(4, 2, CHUNK, 4, 64), chunk_size=CHUNK,
)
backend = PDBackend(config, metadata)


def key(number: int) -> CacheEngineKey:
    return CacheEngineKey(MODEL, 1, 0, number, torch.float32)


def chunk(number: int) -> torch.Tensor:
    """The KV of a chunk: equal in both processes."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(number))


def objects(count: int) -> "list[MemoryObj]":
    made = [backend.allocate(SHAPE, torch.float32, MemoryFormat.KV_2LTD) for _ in range(count)]
    assert all(made), "no memory"
    return made


def peer(ports: "list[int]") -> DisaggSpec:
    """The decode side as a router names it."""
    init, alloc, query = ports
    return DisaggSpec("request", "decode", "127.0.0.1", [init], [alloc], is_last_prefill=True, receiver_query_port=[query])


def put(numbers: "list[int]", ports: "list[int]") -> int:
    """Writes these chunks to the other side. Returns how many LMCache wrote."""
    made = objects(len(numbers))
    for o, n in zip(made, numbers):
        o.tensor.copy_(chunk(n))
    futures: "list[Future[Any]] | None" = backend.batched_submit_put_task([key(n) for n in numbers], made, peer(ports))
    assert futures
    return sum(f.result() for f in futures)


def read(numbers: "list[int]", ports: "list[int]") -> int:
    """Reads the chunks that the other side has, and compares them. Returns how many LMCache read."""
    made = objects(len(numbers))
    for o in made:
        o.tensor.zero_()
    count = backend.batched_submit_read_task([key(n) for n in numbers], made, peer(ports))
    for o, n in list(zip(made, numbers))[:count]:
        assert torch.equal(o.tensor, chunk(n)), f"chunk {n} has wrong bytes"
    return count


def check(numbers: "list[int]") -> int:
    """Compares what came. Returns its bytes."""
    for n in numbers:
        assert torch.equal(backend.get_blocking(key(n)).tensor, chunk(n)), f"chunk {n} has wrong bytes"
    return sum(backend.get_blocking(key(n)).tensor.nbytes for n in numbers)


if __name__ == "__main__":
    serve(put, read, check)
