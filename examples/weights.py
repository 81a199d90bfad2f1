#!/usr/bin/env python3
"""A trainer pushes each new version of its weights to inference workers, which check every byte.

    NIXL_PLUGIN_DIR=/path/to/plugins python weights.py [--backend GORAIL] [--workers 3] [--versions 10] [--mib 32]

A worker has room for two versions. It serves from one while the trainer writes into the other. The notification arrives
after the bytes. It has the version's number and checksums. The worker answers, and then the trainer may write again.
"""

import argparse
import json
import multiprocessing as mp
import time
import zlib

import numpy as np

try:
    from nixl._api import nixl_agent, nixl_agent_config
except ImportError:  # only the wheel is installed, without the package `nixl`
    from nixl_cu12._api import nixl_agent, nixl_agent_config

TIMEOUT = 60  # seconds, for every wait


def poll(what, done):
    deadline = time.monotonic() + TIMEOUT
    while not (result := done()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
    return result


def new_weights(mib):
    return {name: np.zeros((mib << 20) * n // 16, np.uint8) for name, n in (("embedding", 8), ("layers", 7), ("head", 1))}


def register(agent, backend, weights):
    """Registers all tensors. Returns their descriptors, in the order of the names."""
    regions = [(weights[name].ctypes.data, weights[name].nbytes, 0) for name in sorted(weights)]
    agent.register_memory([(*region, "") for region in regions], "DRAM", [backend])
    return regions


def described(version, weights):
    return json.dumps([version, {name: zlib.crc32(tensor) for name, tensor in weights.items()}]).encode()


def worker(pipe, name, backend, versions, mib):
    agent = nixl_agent(name, nixl_agent_config(backends=[backend]))
    slots = [new_weights(mib), new_weights(mib)]
    regions = [register(agent, backend, weights) for weights in slots]
    pipe.send((agent.get_agent_metadata(), regions))
    agent.add_remote_agent(pipe.recv())
    for version in range(1, versions + 1):
        messages = poll(f"version {version}", lambda: agent.get_new_notifs().get("trainer"))
        weights = slots[version % 2]  # from here on it serves from this one
        assert messages == [described(version, weights)], f"{name} has other bytes: {messages}"
        agent.send_notif("trainer", b"%d" % version)
    pipe.recv()  # keeps this agent until the trainer has all answers


def trainer(pipes, backend, versions, mib):
    agent = nixl_agent("trainer", nixl_agent_config(backends=[backend]))
    weights = new_weights(mib)
    local = agent.get_xfer_descs(register(agent, backend, weights), "DRAM")
    requests = {}  # one for each worker and slot: made once, posted for each version
    for name, pipe in pipes.items():
        metadata, regions = pipe.recv()
        agent.add_remote_agent(metadata)
        pipe.send(agent.get_agent_metadata())
        for slot in range(2):
            remote = agent.get_xfer_descs(regions[slot], "DRAM")
            requests[name, slot] = agent.initialize_xfer("WRITE", local, remote, name, b"", [backend])

    answers = {name: [] for name in pipes}

    def answered(count):
        for name, messages in agent.get_new_notifs().items():
            answers[name] += messages
        return all(len(messages) == count for messages in answers.values())

    random = np.random.default_rng(1)
    for version in range(1, versions + 1):
        for tensor in weights.values():  # a step of training
            tensor[:] = random.integers(0, 256, tensor.size, np.uint8)
        message, posted = described(version, weights), [requests[name, version % 2] for name in pipes]
        for request in posted:
            agent.transfer(request, message)
        for request in posted:
            poll("a WRITE", lambda: agent.check_xfer_state(request) != "PROC")
            assert agent.check_xfer_state(request) == "DONE", f"a WRITE of version {version} failed"
        poll(f"the workers' answers to version {version}", lambda: answered(version))
    for name, pipe in pipes.items():
        assert answers[name] == [b"%d" % v for v in range(1, versions + 1)], answers
        pipe.send("end")
    for request in requests.values():
        agent.release_xfer_handle(request)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="GORAIL")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--mib", type=int, default=32, help="size of the weights")
    args = parser.parse_args()
    # spawn: a forked child could not use the library that its parent has loaded.
    context, pipes = mp.get_context("spawn"), {}
    for name in [f"worker {n}" for n in range(args.workers)]:
        pipes[name], theirs = context.Pipe()
        context.Process(target=worker, args=(theirs, name, args.backend, args.versions, args.mib), daemon=True).start()
        theirs.close()  # if a worker ends, our recv fails
    trainer(pipes, args.backend, args.versions, args.mib)
    print(f"{args.backend}: {args.versions} versions on {args.workers} workers, every byte verified")


if __name__ == "__main__":
    main()
