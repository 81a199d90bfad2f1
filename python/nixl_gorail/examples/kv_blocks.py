"""A decode process pulls blocks of a prefill process's KV cache: the pattern of vLLM's NixlConnector.

    python -m nixl_gorail.examples.kv_blocks [--backend GORAIL] [--requests 100] [--device cuda:0]

Each process prepares a list of all its blocks once (prep_xfer_dlist). A request then names blocks by their numbers
(make_prepped_xfer). The READ's notification tells the prefill process that it may use the blocks again.
"""

import argparse
import multiprocessing as mp
import random
import time

import numpy as np

from nixl_gorail import nixl_api
from nixl_gorail.examples import find_gorail

LAYERS, BLOCKS, BLOCK_BYTES, REQUEST_BLOCKS, TIMEOUT = 8, 256, 16 << 10, 24, 60


def new_cache(name, backend, device):
    """Returns an agent, a cache registered with it, and the descriptors of all blocks: those of layer 0, of layer 1, and so on."""
    api, shape = nixl_api(), (LAYERS, BLOCKS, BLOCK_BYTES)
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=[backend]))
    if device == "numpy":
        cache = np.zeros(shape, np.uint8)
        start, kind, number = cache.ctypes.data, "DRAM", 0
    else:
        import torch
        cache = torch.zeros(shape, dtype=torch.uint8, device=device)
        start, kind, number = cache.data_ptr(), "VRAM" if cache.is_cuda else "DRAM", max(cache.get_device(), 0)
    agent.register_memory([(start, LAYERS * BLOCKS * BLOCK_BYTES, number, "")], kind, [backend])
    return agent, cache, ([(start + i * BLOCK_BYTES, BLOCK_BYTES, number) for i in range(LAYERS * BLOCKS)], kind)


def read(cache, blocks):
    return cache[:, blocks] if isinstance(cache, np.ndarray) else cache[:, blocks].cpu().numpy()


def fill(cache, blocks, contents):
    cache[:, blocks] = contents if isinstance(cache, np.ndarray) else cache.new_tensor(contents)
    read(cache, blocks[:1])  # NIXL does not wait for work that a GPU has queued. This does.


def contents_of(request):
    return np.random.default_rng(request).integers(0, 256, (LAYERS, REQUEST_BLOCKS, BLOCK_BYTES), np.uint8)


def indices(blocks):
    return (np.arange(LAYERS)[:, None] * BLOCKS + np.array(blocks)).ravel().astype(np.int32)


def poll(what, done):
    deadline = time.monotonic() + TIMEOUT
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(what)


def prefill(pipe, backend, device, requests):
    agent, cache, described = new_cache("prefill", backend, device)
    pipe.send((agent.get_agent_metadata(), *described))
    free, lent, todo = set(range(BLOCKS)), {}, list(range(requests))

    def step():
        for message in agent.get_new_notifs().get("decode", []):
            free.update(lent.pop(int(message)))
        while todo and len(free) >= REQUEST_BLOCKS:
            request = todo.pop(0)
            lent[request] = random.sample(sorted(free), REQUEST_BLOCKS)
            free.difference_update(lent[request])
            fill(cache, lent[request], contents_of(request))
            pipe.send((request, lent[request]))
        return not todo and not lent

    poll("the notifications of all requests", step)
    pipe.send("all blocks are free")


def decode(pipe, backend, device, requests):
    agent, cache, here = new_cache("decode", backend, device)
    metadata, *there = pipe.recv()
    peer = agent.add_remote_agent(metadata)
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", *here, [backend])
    remote = agent.prep_xfer_dlist(peer, *there, [backend])
    for _ in range(requests):
        (request, theirs), ours = pipe.recv(), random.sample(range(BLOCKS), REQUEST_BLOCKS)
        handle = agent.make_prepped_xfer("READ", local, indices(ours), remote, indices(theirs), b"%d" % request, [backend])
        agent.transfer(handle)
        poll("a READ", lambda: agent.check_xfer_state(handle) != "PROC")
        assert agent.check_xfer_state(handle) == "DONE", f"the READ of request {request} failed"
        assert (read(cache, ours) == contents_of(request)).all(), "other bytes than the prefill process has"
        agent.release_xfer_handle(handle)
    assert pipe.recv() == "all blocks are free"
    agent.release_dlist_handle(local)
    agent.release_dlist_handle(remote)
    agent.remove_remote_agent(peer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="GORAIL")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--device", default="numpy", help="numpy, or a device of torch: cpu, cuda:0")
    args = parser.parse_args()
    find_gorail(args.backend)
    # spawn: a forked child could not use the library that its parent has loaded.
    context, common = mp.get_context("spawn"), (args.backend, args.device, args.requests)
    ours, theirs = context.Pipe()
    context.Process(target=prefill, args=(theirs, *common), daemon=True).start()
    theirs.close()  # if the prefill process ends, our recv fails
    decode(ours, *common)
    print(f"{args.backend}: {args.requests} requests of {LAYERS} x {REQUEST_BLOCKS} blocks, every byte verified")


if __name__ == "__main__":
    main()
