#!/usr/bin/env python3
"""Transfers between two GPUs beside matrix products on both: what each costs the other.

    NIXL_PLUGIN_DIR=/path/to/plugins python busy_gpu.py [--variants default gpu_copy=engine ...] [--json FILE]

Needs two GPUs, torch and NIXL. Each process queues bf16 products of 8192 x 8192 matrices on its GPU, then one process writes to the
other's GPU until its products have ended. A variant is a list of options of the backend, separated by commas.
"""

import argparse
import json
import multiprocessing as mp
import statistics
import time

import numpy as np
import torch

try:
    from nixl._api import nixl_agent, nixl_agent_config
except ImportError:  # only a wheel is installed, without the package `nixl`
    try:
        from nixl_cu13._api import nixl_agent, nixl_agent_config
    except ImportError:
        from nixl_cu12._api import nixl_agent, nixl_agent_config

ROOM, PRODUCTS = 1 << 30, 250
CASES = {"10,000 x 8 KiB": (10_000, 8 << 10), "80,000 x 4 KiB": (80_000, 4 << 10), "1,952 x 72 KiB": (1_952, 73_728), "1 x 1 GiB": (1, 1 << 30),
         "1 x 4 KiB": (1, 4 << 10)}


class Products:
    """Matrix products on one GPU."""

    def __init__(self, device):
        self.a, self.b, self.c = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(3))
        self.stream, self.device = torch.cuda.Stream(device), device
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def queue(self, n):
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.begin.record()
            for _ in range(n):
                torch.matmul(self.a, self.b, out=self.c)
            self.end.record()

    def ended(self):
        return self.end.query()

    def wait(self):
        """Returns the milliseconds that the products took."""
        self.end.synchronize()
        return self.begin.elapsed_time(self.end)


def new_agent(name, backend, params, cache, device):
    agent = nixl_agent(name, nixl_agent_config(backends=[]))
    agent.create_backend(backend, params)
    registered = agent.register_memory([(cache.data_ptr(), ROOM, device, "")], "VRAM", [backend])
    return agent, registered


def blocks(cache, device, count, size, seed):
    slots = ROOM // size
    at = np.random.default_rng(seed).permutation(slots)[:count].astype(np.uint64) * np.uint64(size) + np.uint64(cache.data_ptr())
    return [(int(a), size, device) for a in at]


def target(pipe, backend, cases):
    torch.cuda.set_device(1)
    cache, products, agent = torch.zeros(ROOM, dtype=torch.uint8, device="cuda:1"), Products("cuda:1"), None
    torch.cuda.synchronize(1)
    while True:
        what, *args = pipe.recv()
        if what == "agent":
            agent, registered = new_agent(f"target{args[1]}", backend, args[0], cache, 1)
            pipe.send((agent.get_agent_metadata(), {name: blocks(cache, 1, *case, 2) for name, case in cases.items()}))
        elif what == "queue":
            products.queue(args[0])
            pipe.send(None)
        elif what == "wait":
            pipe.send(products.wait())
        elif what == "drop":
            agent.deregister_memory(registered, [backend])
            del agent
            pipe.send(None)
        else:
            return


def transfers(agent, handle, more):
    """Posts the transfer again and again. Returns the seconds of each."""
    took = []
    while more():
        start = time.perf_counter()
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        assert state == "DONE", state
        took.append(time.perf_counter() - start)
    return took


def until(seconds):
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


def measure(pipe, backend, number, variant, cache, products, cases):
    params = dict(p.split("=", 1) for p in variant.split(",") if "=" in p)
    pipe.send(("agent", params, number))
    metadata, there = pipe.recv()
    agent, registered = new_agent(f"initiator{number}", backend, params, cache, 0)
    peer = agent.add_remote_agent(metadata)
    rows = []

    def both(n):
        pipe.send(("queue", n))
        pipe.recv()
        products.queue(n)

    def times():
        pipe.send(("wait",))
        return products.wait(), pipe.recv()

    for name, (count, size) in cases.items():
        local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", blocks(cache, 0, count, size, 1), "VRAM", [backend])
        remote = agent.prep_xfer_dlist(peer, there[name], "VRAM", [backend])
        all_of = np.arange(count, dtype=np.int32)
        handle = agent.make_prepped_xfer("WRITE", local, all_of, remote, all_of, b"", [backend])
        transfers(agent, handle, until(0.1))
        quiet = transfers(agent, handle, until(0.25))
        both(PRODUCTS)
        alone = times()
        both(PRODUCTS)
        busy = transfers(agent, handle, lambda: not products.ended())
        beside = times()
        row = {"variant": variant, "case": name, "quiet_us": statistics.median(quiet) * 1e6, "busy_us": statistics.median(busy) * 1e6,
               "quiet_gbs": count * size / statistics.median(quiet) / 1e9, "busy_gbs": count * size * len(busy) / sum(busy) / 1e9,
               "cost_initiator": beside[0] / alone[0] - 1, "cost_target": beside[1] / alone[1] - 1, "tflops": 2 * 8192**3 * PRODUCTS / alone[0] / 1e9}
        print("{variant:28} {case:16} quiet {quiet_us:9.1f} us {quiet_gbs:6.1f} GB/s, beside products {busy_us:9.1f} us {busy_gbs:6.1f} GB/s; "
              "products {cost_initiator:+.1%} {cost_target:+.1%} of {tflops:.0f} TFLOP/s".format(**row), flush=True)
        rows.append(row)
        for free, h in ((agent.release_xfer_handle, handle), (agent.release_dlist_handle, local), (agent.release_dlist_handle, remote)):
            free(h)
    agent.remove_remote_agent(peer)
    agent.deregister_memory(registered, [backend])
    del agent
    pipe.send(("drop",))
    pipe.recv()
    return rows


def case(text):
    count, size = text.split("x")
    return int(count), int(size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="GORAIL")
    parser.add_argument("--variants", nargs="+", default=["default", "gpu_copy=kernel", "gpu_copy=engine"])
    parser.add_argument("--cases", nargs="+", type=case, help="COUNTxBYTES of blocks, in place of those of an inference engine")
    parser.add_argument("--json")
    args = parser.parse_args()
    cases = {f"{count:,} x {size:,}": (count, size) for count, size in args.cases} if args.cases else CASES
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    peer = context.Process(target=target, args=(theirs, args.backend, cases), daemon=True)
    peer.start()
    theirs.close()
    torch.cuda.set_device(0)
    cache, products = torch.zeros(ROOM, dtype=torch.uint8, device="cuda:0"), Products("cuda:0")
    torch.cuda.synchronize(0)
    products.queue(20)
    products.wait()
    rows = []
    for number, variant in enumerate(args.variants):
        rows += measure(ours, args.backend, number, variant, cache, products, cases)
    ours.send(("end",))
    peer.join(10)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"gpus": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
