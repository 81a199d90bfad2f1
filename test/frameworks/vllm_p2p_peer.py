"""One side of the P2P tier of vLLM's KV offloading: its NIXL transport over a region of host memory.

argv: a name, a backend of NIXL, and how many blocks the region has.
"""

import base64
import mmap
import sys
import time

import numpy as np
from talk import serve
from vllm.v1.kv_offload.tiering.p2p.data.nixl import NixlTransport

BLOCK_BYTES = 1 << 20

name, backend, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
region = mmap.mmap(-1, blocks * BLOCK_BYTES)
memory = np.frombuffer(region, dtype=np.uint8).reshape(blocks, BLOCK_BYTES)
transport = NixlTransport(f"{name}-{time.time_ns()}", memoryview(region).cast("B", (blocks, BLOCK_BYTES)), backends=[backend])


def content(seed: int, block: int) -> np.ndarray:
    return np.random.default_rng((seed, block)).integers(0, 256, BLOCK_BYTES, dtype=np.uint8)


def fill(seed: int) -> None:
    for i in range(blocks):
        memory[i] = content(seed, i)


def describe() -> "list[object]":
    return [base64.b64encode(transport.get_agent_metadata()).decode(), transport.base_addr]


def add(peer: str, metadata: str, address: int) -> None:
    transport.add_remote_peer(peer, base64.b64decode(metadata), address, blocks, BLOCK_BYTES)


def remove(peer: str) -> None:
    transport.remove_remote_peer(peer)


def write(peer: str, mine: "list[int]", theirs: "list[int]") -> "int | None":
    return transport.write_blocks(peer, mine, theirs)


def cancel(transfers: "list[int]") -> "list[int]":
    """Returns those that may still write."""
    return transport.cancel(transfers, "wait")


def ended(peer: str, transfers: "list[int]") -> "dict[str, object]":
    """Polls until all of them have ended."""
    done: "list[int]" = []
    failed: "list[int]" = []
    fault = None
    while {*transfers} - {*done, *failed}:
        result = transport.poll(peer)
        done, failed, fault = done + list(result.done), failed + list(result.failed), result.peer_fault
        time.sleep(0.001)
    return {"done": sorted(done), "failed": sorted(failed), "fault": fault}


def check(seed: int, mine: "list[int]", theirs: "list[int]") -> int:
    """Compares every block, also those that nobody wrote. Returns how many bytes came."""
    sources = dict(zip(theirs, mine))
    for i in range(blocks):
        want = content(seed, sources[i]) if i in sources else 0
        assert (memory[i] == want).all(), f"block {i} has wrong bytes"
    return len(theirs) * BLOCK_BYTES


if __name__ == "__main__":
    serve(fill, describe, add, remove, write, cancel, ended, check)
