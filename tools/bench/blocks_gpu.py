#!/usr/bin/env python3
"""Blocks of a KV cache between two GPUs as an inference engine moves them: what making the request, its post and its end take.

    NIXL_PLUGIN_DIR=/path/to/plugins python blocks_gpu.py [GORAIL] [UCX] [UCX+NIXL_UCX_SGL_ENABLE=y] [--json FILE]

Needs two GPUs, torch, NIXL, and the wheel's own plugins beside GORAIL's in that folder. Both sides prepare lists of all blocks once; a request names random ones. Each backend gets two
processes of its own; after + follow environment variables. UCX takes lists at once (SGL) only with NIXL's wheel for CUDA 13.
"""

import argparse
import json
import multiprocessing as mp
import os
import statistics
import sys
import time

import numpy as np

ROOM = 1 << 30
CASES = {"70B TP8: 80,000 x 4 KiB": (80_000, 4 << 10), "8B: 8,000 x 32 KiB": (8_000, 32 << 10), "MLA: 1,952 x 72 KiB": (1_952, 73_728)}


def new_agent(name, backend, device):
    import torch
    try:
        from nixl._api import nixl_agent, nixl_agent_config
    except ImportError:
        try:
            from nixl_cu13._api import nixl_agent, nixl_agent_config
        except ImportError:
            from nixl_cu12._api import nixl_agent, nixl_agent_config
    torch.cuda.set_device(device)
    cache = torch.zeros(ROOM, dtype=torch.uint8, device=f"cuda:{device}")
    torch.cuda.synchronize(device)
    agent = nixl_agent(name, nixl_agent_config(backends=[]))
    agent.create_backend(backend, {})
    agent.register_memory([(cache.data_ptr(), ROOM, device, "")], "VRAM", [backend])
    return agent, cache


def blocks(cache, size, device):
    return [(cache.data_ptr() + i * size, size, device) for i in range(ROOM // size)]


def target(pipe, backend):
    agent, cache = new_agent("target", backend, 1)
    pipe.send((agent.get_agent_metadata(), cache.data_ptr()))
    while not pipe.poll(0):
        agent.get_new_notifs()
    agent = None


def initiator(pipe, backend, say):
    agent, cache = new_agent("initiator", backend, 0)
    metadata, there = pipe.recv()
    peer = agent.add_remote_agent(metadata)
    rows = []
    for name, (count, size) in CASES.items():
        slots, rng = ROOM // size, np.random.default_rng(1)
        local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", blocks(cache, size, 0), "VRAM", [backend])
        remote = agent.prep_xfer_dlist(peer, [(there + i * size, size, 1) for i in range(slots)], "VRAM", [backend])
        for op in "WRITE", "READ":
            made, posted, done = [], [], []
            end = time.perf_counter() + 2
            while len(done) < 3 or time.perf_counter() < end and len(done) < 40:
                ours, theirs = (rng.permutation(slots)[:count].astype(np.int32) for _ in range(2))
                t0 = time.perf_counter()
                handle = agent.make_prepped_xfer(op, local, ours, remote, theirs, b"", [backend])
                t1 = time.perf_counter()
                state = agent.transfer(handle)
                t2 = time.perf_counter()
                while state == "PROC":
                    state = agent.check_xfer_state(handle)
                t3 = time.perf_counter()
                assert state == "DONE", state
                agent.release_xfer_handle(handle)
                made.append(t1 - t0)
                posted.append(t2 - t1)
                done.append(t3 - t1)
            row = {"backend": say, "case": name, "op": op, "make_ms": statistics.median(made) * 1e3, "post_ms": statistics.median(posted) * 1e3,
                   "done_ms": statistics.median(done) * 1e3, "gbs": count * size / statistics.median(done) / 1e9, "runs": len(done)}
            print("{backend:26} {case:24} {op:5} make {make_ms:7.2f} ms, post {post_ms:8.3f} ms, done {done_ms:8.3f} ms, {gbs:6.1f} GB/s ({runs} runs)".format(**row),
                  flush=True)
            rows.append(row)
        agent.release_dlist_handle(local)
        agent.release_dlist_handle(remote)
    agent.remove_remote_agent(peer)
    return rows


def run(pipe, peer, backend, say):
    try:
        pipe.send(initiator(peer, backend, say))
    except Exception as e:
        pipe.send(repr(e))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", default=["GORAIL", "UCX", "UCX+NIXL_UCX_SGL_ENABLE=y"])
    parser.add_argument("--json")
    args = parser.parse_args()
    context, rows, failed = mp.get_context("spawn"), [], False
    for say in args.backends:
        backend, *env = say.split("+")
        for e in env:
            os.environ.__setitem__(*e.split("=", 1))
        ours, theirs = context.Pipe()
        result, report = context.Pipe()
        processes = [context.Process(target=target, args=(theirs, backend), daemon=True),
                     context.Process(target=run, args=(report, ours, backend, say), daemon=True)]
        for p in processes:
            p.start()
        report.close()
        try:
            got = result.recv() if result.poll(180) else "no result within 180 s"
        except EOFError:
            got = "the initiator died"
        if isinstance(got, str):
            print(f"{say}: {got}", flush=True)
            failed = True
        else:
            rows += got
        ours.send("end")
        for p in processes:
            p.join(10)
            p.kill()
        for e in env:
            del os.environ[e.split("=", 1)[0]]
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f, indent=1)
    sys.exit(failed)


if __name__ == "__main__":
    main()
