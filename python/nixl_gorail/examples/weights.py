"""A trainer pushes each new version of its weights to inference workers, which check every byte.

    python -m nixl_gorail.examples.weights [--backend GORAIL] [--workers 3] [--versions 10] [--mib 32] [--fan-out 2]
        [--layout tensors|arena|resharded] [--device cuda] [--compare nccl]

First flat: the trainer sends to every worker. Then by a tree: each process sends to `--fan-out` others, a tensor as soon as it
has that tensor. The trainer then sends less, which counts where its link is the bottleneck: not on one host.
A worker has room for two versions. It serves from one while the next one arrives in the other. A notification arrives
after a tensor's bytes. It has version, name and checksums. The workers answer, and then the trainer may write again.
The tensors have memory of their own, or lie in one arena. Resharded: each worker has a half of each, by rows or by columns in turn,
as a rank of twice the trainer's tensor parallelism. Halves differ, so there is no tree. `--compare` also moves the weights by
broadcasts of torch.distributed: always whole, as NCCL does it. The workers then take their halves.
"""

import importlib.util
import json
import os
import statistics
import tempfile
import time

import numpy as np

from nixl_gorail.examples import group

TENSORS = {"embedding": 8, **{f"layers.{n}": 1 for n in range(7)}, "head": 1}  # sixteenths of the bytes
ROWS = 256  # of a tensor


def shard(name, tensor, half):
    """What a worker has of a tensor: all, or a half."""
    if half is None:
        return tensor
    by_rows = list(TENSORS).index(name) % 2 == 0
    n = tensor.shape[0 if by_rows else 1] // 2
    return tensor[half * n:(half + 1) * n] if by_rows else tensor[:, half * n:(half + 1) * n]


def new_weights(member, args, half=None):
    """Registered memory of all tensors, or of their halves."""
    shapes = {name: shard(name, np.empty((ROWS, args.mib * n << 8), np.uint8), half).shape for name, n in TENSORS.items()}
    sizes = [rows * columns for rows, columns in shapes.values()]
    arena = member.zeros(sum(sizes), "uint8") if args.layout == "arena" else None
    return {name: (member.zeros(size, "uint8") if arena is None else arena[sum(sizes[:i]):][:size]).reshape(shape)
            for i, (size, (name, shape)) in enumerate(zip(sizes, shapes.items()))}


def described(tensor, args):
    """One range, or a range for each row, which lie apart in half of the columns."""
    if args.layout != "resharded":
        return group.described(tensor)
    return group.described(tensor[0])[0], [group.described(row)[1][0] for row in tensor]


def half_of(name, args):
    return (args.names.index(name) - 1) % 2 if args.layout == "resharded" else None


class Node:
    """A process in a tree of processes, numbered in the order of their names. Those it sends to are its children."""

    def __init__(self, member, args, slots, there, fan_out):
        number = member.names.index(member.name)
        self.member, self.parent = member, member.names[(number - 1) // fan_out]
        self.children = member.names[fan_out * number + 1:fan_out * (number + 1) + 1]
        # Requests are made once, and posted for each version.
        self.requests = {(slot, name): [member.prepare("WRITE", described(shard(name, slots[slot % len(slots)][name], half_of(child, args)), args),
                                                       child, there[child][slot][name])
                                        for child in self.children] for slot in range(2) for name in TENSORS}

    def send(self, version, name, message):
        for request in self.requests[version % 2, name]:
            self.member.start(request, message)

    def close(self):
        for request in sum(self.requests.values(), []):
            self.member.release(request)


def check(version, weights, sums, half):
    for name, tensor in weights.items():
        if group.checksum(tensor) != sums[name][half or 0]:
            raise RuntimeError(f"version {version} has other bytes in {name} than the trainer")


def step(weights, random, args):
    """A step of training: new bytes. Returns the checksums of each tensor, or of its halves."""
    for tensor in weights.values():
        if isinstance(tensor, np.ndarray):
            group.fill(tensor, random.integers(0, 256, tensor.shape, np.uint8))
        else:
            group.finish_gpu(tensor.random_(0, 256))
    halves = (0, 1) if args.layout == "resharded" else (None,)
    return {name: [group.checksum(shard(name, tensor, half)) for half in halves] for name, tensor in weights.items()}


def broadcast(member, args, weights, random=None):
    """Moves the weights of some versions by broadcasts of torch.distributed. Returns the seconds of each."""
    import torch
    import torch.distributed as dist
    half, seconds, number = half_of(member.name, args) if random is None else None, [], args.names.index(member.name)
    dist.init_process_group(args.compare, init_method=f"file://{args.store}", rank=number, world_size=len(args.names))
    whole = {name: torch.as_tensor(tensor) for name, tensor in weights.items()}
    mine = whole
    if half is not None:
        whole = {name: tensor.new_zeros((ROWS, args.mib * TENSORS[name] << 8)) for name, tensor in mine.items()}
    for version in range(args.versions + 1):  # the first one connects
        sums = step(weights, random, args) if random else None
        member.gather()
        start = time.perf_counter()
        for work in [dist.broadcast(tensor, 0, async_op=True) for tensor in whole.values()]:
            work.wait()
        for name, tensor in mine.items():
            if half is not None:
                tensor.copy_(shard(name, whole[name], half))
            group.finish_gpu(tensor)
        everyone = member.gather((time.perf_counter() - start, sums))
        if not random:
            check(version, weights, everyone["trainer"][1], half)
        seconds.append(max(took for took, _ in everyone.values()))
    dist.destroy_process_group()
    return seconds[1:]


def worker(member, args):
    half = half_of(member.name, args)
    slots = [new_weights(member, args, half), new_weights(member, args, half)]
    there = member.meet([{name: described(tensor, args) for name, tensor in weights.items()} for weights in slots])
    for fan_out in args.ways.values():
        node = Node(member, args, slots, there, fan_out)
        for version in range(1, args.versions + 1):
            sums = {}
            while len(sums) < len(TENSORS):
                group.wait(f"version {version} from {node.parent}", lambda: member.news()[node.parent])
                message = member.inbox[node.parent].pop(0)
                member.die_if_told(version == args.versions // 2 + 1)
                got, name, sums[name] = json.loads(message)
                if got != version:
                    raise RuntimeError(f"{name} of version {got} came in the place of version {version}")
                node.send(version, name, message)
            member.finish()
            member.tell("trainer", b"has %d" % version)
            check(version, slots[version % 2], sums, half)  # from here on it serves from this one
            member.tell("trainer", b"checked %d" % version)
        member.gather()
        node.close()
    if args.compare:
        broadcast(member, args, slots[0])


def trainer(member, args):
    weights, workers, results, random = new_weights(member, args), member.names[1:], {}, np.random.default_rng(1)
    there = member.meet(None)

    def note(way, seconds, children):
        took, size = statistics.median(seconds), (args.mib << 20) // (2 if args.layout == "resharded" else 1)
        results[way] = {"seconds": took, "gb_per_s": len(workers) * size / took / 1e9, "trainer_sends_to": children}

    for way, fan_out in args.ways.items():
        node, seconds = Node(member, args, [weights], there, fan_out), []
        for version in range(1, args.versions + 1):
            messages = {name: json.dumps([version, name, sums]).encode() for name, sums in step(weights, random, args).items()}
            start = time.perf_counter()
            for name, message in messages.items():
                node.send(version, name, message)
                member.die_if_told(version == args.versions // 2 + 1)
            for name in workers:
                member.expect(name, b"has %d" % version)
            seconds.append(time.perf_counter() - start)
            member.finish()
            for name in workers:
                member.expect(name, b"checked %d" % version)
        member.gather()
        node.close()
        note(way, seconds, len(node.children))
    if args.compare:
        note(args.compare, broadcast(member, args, weights, random), len(workers))
    return results


def main():
    parser = group.parser(__doc__)
    for option, default in (("--workers", 3), ("--versions", 10), ("--mib", 32), ("--fan-out", 2)):
        parser.add_argument(option, type=group.positive, default=default)
    parser.add_argument("--layout", choices=("tensors", "arena", "resharded"), default="tensors", help="how the tensors lie in memory")
    parser.add_argument("--compare", choices=("nccl", "gloo"), help="also broadcast by torch.distributed: nccl with --device cuda, gloo on processors")
    args = group.parse(parser, lambda args: ["trainer", *(f"worker {n}" for n in range(args.workers))])
    if args.compare and not importlib.util.find_spec("torch"):
        parser.error(f"--compare {args.compare} needs torch")
    if args.compare == "nccl" and args.device != "cuda":
        parser.error("--compare nccl needs --device cuda: a GPU for each process")
    args.ways = {"flat": args.workers, **({} if args.layout == "resharded" else {"tree": args.fan_out})}
    with tempfile.TemporaryDirectory() as folder:
        args.store = os.path.join(folder, "store")
        results = group.launch(worker, args, trainer=trainer)["trainer"]
    for way, r in results.items():
        print(f"{way}: {1e3 * r['seconds']:.1f} ms a version, {r['gb_per_s']:.2f} GB/s to all workers, the trainer sends to {r['trainer_sends_to']}")
    group.write_json(args, results)
    print(f"{args.backend}: {args.versions} versions on {args.workers} workers, every byte verified")


if __name__ == "__main__":
    main()
