"""A trainer pushes each new version of its weights to inference workers, which check every byte.

    python -m nixl_gorail.examples.weights [--backend GORAIL] [--workers 3] [--versions 10] [--mib 32] [--fan-out 2]

First flat: the trainer sends to every worker. Then by a tree: each process sends to `--fan-out` others, a tensor as soon as it
has that tensor. The trainer then sends less, which counts where its link is the bottleneck: not on one host.
A worker has room for two versions. It serves from one while the next one arrives in the other. A notification arrives
after a tensor's bytes. It has version, name and checksum. The workers answer, and then the trainer may write again.
"""

import json
import statistics
import time

import numpy as np

from nixl_gorail.examples import group

TENSORS = {"embedding": 8, **{f"layers.{n}": 1 for n in range(7)}, "head": 1}  # sixteenths of the bytes


def new_weights(member, mib):
    return {name: member.zeros((mib << 16) * n, "uint8") for name, n in TENSORS.items()}


class Node:
    """A process in a tree of processes, numbered in the order of their names. Those it sends to are its children."""

    def __init__(self, member, slots, there, fan_out):
        number = member.names.index(member.name)
        self.member, self.parent = member, member.names[(number - 1) // fan_out]
        self.children = member.names[fan_out * number + 1:fan_out * (number + 1) + 1]
        # Requests are made once, and posted for each version.
        self.requests = {(slot, name): [member.prepare("WRITE", group.described(slots[slot % len(slots)][name]), child, there[child][slot][name])
                                        for child in self.children] for slot in range(2) for name in TENSORS}

    def send(self, version, name, message):
        for request in self.requests[version % 2, name]:
            self.member.start(request, message)

    def close(self):
        for request in sum(self.requests.values(), []):
            self.member.release(request)


def worker(member, args):
    slots = [new_weights(member, args.mib), new_weights(member, args.mib)]
    there = member.meet([{name: group.described(tensor) for name, tensor in weights.items()} for weights in slots])
    for fan_out in args.ways.values():
        node = Node(member, slots, there, fan_out)
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
            for name, tensor in slots[version % 2].items():  # from here on it serves from this one
                if group.checksum(tensor) != sums[name]:
                    raise RuntimeError(f"version {version} has other bytes in {name} than the trainer")
            member.tell("trainer", b"checked %d" % version)
        member.gather()
        node.close()


def trainer(member, args):
    weights, workers, results, random = new_weights(member, args.mib), member.names[1:], {}, np.random.default_rng(1)
    there = member.meet(None)
    for way, fan_out in args.ways.items():
        node, seconds = Node(member, [weights], there, fan_out), []
        for version in range(1, args.versions + 1):
            for tensor in weights.values():  # a step of training
                group.fill(tensor, random.integers(0, 256, len(tensor), np.uint8))
            messages = {name: json.dumps([version, name, group.checksum(tensor)]).encode() for name, tensor in weights.items()}
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
        took = statistics.median(seconds)
        results[way] = {"seconds": took, "gb_per_s": len(workers) * (args.mib << 20) / took / 1e9, "trainer_sends_to": len(node.children)}
    return results


def main():
    parser = group.parser(__doc__)
    for option, default in (("--workers", 3), ("--versions", 10), ("--mib", 32), ("--fan-out", 2)):
        parser.add_argument(option, type=group.positive, default=default)
    args = group.parse(parser, lambda args: ["trainer", *(f"worker {n}" for n in range(args.workers))])
    args.ways = {"flat": args.workers, "tree": args.fan_out}
    results = group.launch(worker, args, trainer=trainer)["trainer"]
    for way, r in results.items():
        print(f"{way}: {1e3 * r['seconds']:.1f} ms a version, {r['gb_per_s']:.2f} GB/s to all workers, {r['trainer_sends_to']} of them from the trainer")
    group.write_json(args, results)
    print(f"{args.backend}: {args.versions} versions on {args.workers} workers, every byte verified")


if __name__ == "__main__":
    main()
