"""One side of LMCache's transfer channel between its servers (lmcache.v1.distributed). argv: a backend of NIXL, own and other port."""

import math
import sys
import time

import numpy as np
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.transfer_channel.impl import nixl_impl
from nixl._bindings import nixlRemoteDisconnectError
from talk import serve

PAGE, PAGES = 64 << 10, 64

backend, own, other = sys.argv[1], *(f"127.0.0.1:{p}" for p in sys.argv[2:4])
memory = np.zeros(PAGE * PAGES, dtype=np.uint8)
context = nixl_impl.NixlTransferChannelContext(L1MemoryDesc(memory.ctypes.data, memory.nbytes, PAGE), own, own, [backend])


def content(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, memory.nbytes, dtype=np.uint8)


def fill(seed: int) -> None:
    memory[:] = content(seed)


def read(seed: int, objects: "list[tuple[int, int, int]]") -> int:
    """Reads objects (own page, other's page, bytes), and compares every byte of the memory. Returns how many bytes came; -1: the READ failed."""
    mine = context.get_transfer_channel_address([(a * PAGE, n) for a, _, n in objects])
    theirs = context.get_transfer_channel_address([(b * PAGE, n) for _, b, n in objects])
    client = context.get_transfer_channel_client(other)
    try:
        task = client.submit_read(mine, theirs)
    except nixlRemoteDisconnectError:  # the plugin knew it before the post
        return -1
    while not (result := client.query_read_status(task)).is_finished():
        time.sleep(0.002)
    assert all(result.succeeded_mask) or not any(result.succeeded_mask)
    if not all(result.succeeded_mask):
        return -1
    want, sent, came = np.zeros_like(memory), content(seed), 0
    for a, b, n in objects:
        whole = math.ceil(n / PAGE) * PAGE  # LMCache reads whole pages
        want[a * PAGE : a * PAGE + whole] = sent[b * PAGE : b * PAGE + whole]
        came += whole
    assert (memory == want).all(), f"wrong bytes in pages {np.unique(np.nonzero(memory != want)[0] // PAGE)}"
    return came


if __name__ == "__main__":
    serve(fill, read)
