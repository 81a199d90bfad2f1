#!/usr/bin/env python3
"""Transfers between two GPUs beside kernels on both: what each costs the other.

    NIXL_PLUGIN_DIR=/path/to/plugins python busy_gpu.py [--load decode --peer_load prefill --op READ] [--variants default gpu_copy=engine ...] [--json FILE]

Needs two GPUs, torch and NIXL; prefill and decode need vLLM, too. Each process queues work on its GPU, and then one process writes to the other's
GPU, or reads from it, until its work has ended. The work: bf16 products of 8192 x 8192 matrices; layers of Llama 3 8B with vLLM's kernels, in a
graph as vLLM runs them, for a prefill of four prompts of 2,048 tokens or for a decode of 64 sequences of 2,048. A variant is a list of
options of the backend, separated by commas.
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

ROOM = 1 << 30
CASES = {"10,000 x 8 KiB": (10_000, 8 << 10), "80,000 x 4 KiB": (80_000, 4 << 10), "1,952 x 72 KiB": (1_952, 73_728), "1 x 1 GiB": (1, 1 << 30),
         "1 x 4 KiB": (1, 4 << 10)}


class Products:
    """Matrix products on one GPU."""

    many = 250  # 0.4 s

    def __init__(self, device):
        self.begun(device)
        self.a, self.b, self.c = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(3))

    def begun(self, device):
        self.stream, self.device = torch.cuda.Stream(device), device
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def step(self):
        torch.matmul(self.a, self.b, out=self.c)

    def queue(self, n):
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.begin.record()
            for _ in range(n):
                self.step()
            self.end.record()

    def ended(self):
        return self.end.query()

    def wait(self):
        """Returns the milliseconds that the products took."""
        self.end.synchronize()
        return self.begin.elapsed_time(self.end)


class Layers(Products):
    """Layers of Llama 3 8B with vLLM's kernels. The attention's cache has blocks of 16 tokens."""

    hidden, heads, kv_heads, inner, size, block = 4096, 32, 8, 14336, 128, 16
    context, sequences = 2048, 64

    def __init__(self, device):
        import vllm._custom_ops  # noqa: F401 (the kernels)
        from vllm.vllm_flash_attn import flash_attn_varlen_func
        self.begun(device)
        self.attention = flash_attn_varlen_func

        def made(*shape):
            return torch.randn(*shape, device=device, dtype=torch.bfloat16) * 0.02

        n, q, kv = self.sequences * self.each, self.heads * self.size, self.kv_heads * self.size
        self.x, self.rest, self.norm = made(n, self.hidden), made(n, self.hidden), made(self.hidden)
        self.normed, self.qkv, self.out, self.up, self.gate = made(n, self.hidden), made(n, q + 2 * kv), made(n, q), made(n, 2 * self.inner), made(n, self.inner)
        self.to_qkv, self.to_out, self.to_up, self.to_down = made(self.hidden, q + 2 * kv), made(q, self.hidden), made(self.hidden, 2 * self.inner), made(self.inner, self.hidden)
        pages = self.context // self.block
        self.cache = [made(self.sequences * pages, self.block, self.kv_heads, self.size) for _ in range(2)]
        self.table = torch.arange(self.sequences * pages, device=device, dtype=torch.int32).view(self.sequences, pages)
        self.begins = torch.arange(self.sequences + 1, device=device, dtype=torch.int32) * self.each
        self.used = torch.full((self.sequences,), self.context, device=device, dtype=torch.int32)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            with torch.cuda.stream(self.stream):
                self.layer()  # what is made at the first use
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=self.stream):
                for _ in range(self.layers):
                    self.layer()

    def layer(self):
        ops, q = torch.ops._C, self.heads * self.size
        ops.rms_norm(self.normed, self.x, self.norm, 1e-6)
        torch.matmul(self.normed, self.to_qkv, out=self.qkv)
        query = self.qkv[:, :q].reshape(-1, self.heads, self.size)
        self.attention(q=query, k=self.cache[0], v=self.cache[1], out=self.out.view(-1, self.heads, self.size), cu_seqlens_q=self.begins, max_seqlen_q=self.each,
                       seqused_k=self.used, max_seqlen_k=self.context, causal=True, block_table=self.table, fa_version=3)
        torch.matmul(self.out, self.to_out, out=self.normed)
        ops.fused_add_rms_norm(self.normed, self.rest, self.norm, 1e-6)
        torch.matmul(self.normed, self.to_up, out=self.up)
        ops.silu_and_mul(self.gate, self.up)
        torch.matmul(self.gate, self.to_down, out=self.x)

    def step(self):
        self.graph.replay()


class Prefill(Layers):
    sequences, each, layers, many = 4, 2048, 4, 16  # some 0.4 s


class Decode(Layers):
    each, layers, many = 1, 32, 40


LOADS = {"products": Products, "prefill": Prefill, "decode": Decode}


def new_agent(name, backend, params, cache, device):
    agent = nixl_agent(name, nixl_agent_config(backends=[]))
    agent.create_backend(backend, params)
    registered = agent.register_memory([(cache.data_ptr(), ROOM, device, "")], "VRAM", [backend])
    return agent, registered


def blocks(cache, device, count, size, seed):
    slots = ROOM // size
    at = np.random.default_rng(seed).permutation(slots)[:count].astype(np.uint64) * np.uint64(size) + np.uint64(cache.data_ptr())
    return [(int(a), size, device) for a in at]


def target(pipe, backend, cases, load):
    torch.cuda.set_device(1)
    cache, products, agent = torch.zeros(ROOM, dtype=torch.uint8, device="cuda:1"), LOADS[load]("cuda:1"), None
    torch.cuda.synchronize(1)
    while True:
        what, *args = pipe.recv()
        if what == "agent":
            agent, registered = new_agent(f"target{args[1]}", backend, args[0], cache, 1)
            pipe.send((agent.get_agent_metadata(), {name: blocks(cache, 1, *case, 2) for name, case in cases.items()}))
        elif what == "queue":
            products.queue(products.many)
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


def measure(pipe, backend, number, variant, cache, products, cases, op):
    params = dict(p.split("=", 1) for p in variant.split(",") if "=" in p)
    pipe.send(("agent", params, number))
    metadata, there = pipe.recv()
    agent, registered = new_agent(f"initiator{number}", backend, params, cache, 0)
    peer = agent.add_remote_agent(metadata)
    rows = []

    def both():
        pipe.send(("queue",))
        pipe.recv()
        products.queue(products.many)

    def times():
        pipe.send(("wait",))
        return products.wait(), pipe.recv()

    for name, (count, size) in cases.items():
        local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", blocks(cache, 0, count, size, 1), "VRAM", [backend])
        remote = agent.prep_xfer_dlist(peer, there[name], "VRAM", [backend])
        all_of = np.arange(count, dtype=np.int32)
        handle = agent.make_prepped_xfer(op, local, all_of, remote, all_of, b"", [backend])
        transfers(agent, handle, until(0.1))
        quiet = transfers(agent, handle, until(0.25))
        both()
        alone = times()
        both()
        busy = transfers(agent, handle, lambda: not products.ended())
        beside = times()
        row = {"variant": variant, "case": name, "quiet_us": statistics.median(quiet) * 1e6, "busy_us": statistics.median(busy) * 1e6,
               "quiet_gbs": count * size / statistics.median(quiet) / 1e9, "busy_gbs": count * size * len(busy) / sum(busy) / 1e9,
               "cost_initiator": beside[0] / alone[0] - 1, "cost_target": beside[1] / alone[1] - 1, "step_ms": alone[0] / products.many}
        print("{variant:28} {case:16} quiet {quiet_us:9.1f} us {quiet_gbs:6.1f} GB/s, beside the work {busy_us:9.1f} us {busy_gbs:6.1f} GB/s; "
              "a step of {step_ms:.2f} ms {cost_initiator:+.1%}, the peer's {cost_target:+.1%}".format(**row), flush=True)
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
    parser.add_argument("--load", choices=LOADS, default="products", help="of the initiator's GPU")
    parser.add_argument("--peer_load", choices=LOADS, help="default: the same")
    parser.add_argument("--op", choices=["WRITE", "READ"], default="WRITE")
    parser.add_argument("--variants", nargs="+", default=["default", "gpu_copy=kernel", "gpu_copy=engine"])
    parser.add_argument("--cases", nargs="+", type=case, help="COUNTxBYTES of blocks, in place of those of an inference engine")
    parser.add_argument("--json")
    args = parser.parse_args()
    cases = {f"{count:,} x {size:,}": (count, size) for count, size in args.cases} if args.cases else CASES
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    peer = context.Process(target=target, args=(theirs, args.backend, cases, args.peer_load or args.load), daemon=True)
    peer.start()
    theirs.close()
    torch.cuda.set_device(0)
    cache, products = torch.zeros(ROOM, dtype=torch.uint8, device="cuda:0"), LOADS[args.load]("cuda:0")
    torch.cuda.synchronize(0)
    products.queue(products.many)
    products.wait()
    rows = []
    for number, variant in enumerate(args.variants):
        rows += measure(ours, args.backend, number, variant, cache, products, cases, args.op)
    ours.send(("end",))
    peer.join(10)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"gpus": torch.cuda.get_device_name(0), "torch": torch.__version__, "load": args.load, "peer_load": args.peer_load or args.load, "op": args.op, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
