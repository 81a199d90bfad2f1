"""Ranks sum their gradients (all-reduce by a ring and by a tree) while the backward pass still makes the next ones.

    python -m nixl_gorail.examples.gradient_sync [--backend GORAIL] [--ranks 4] [--buckets 8] [--compute-ms 50]

A rank WRITEs into its peer's memory. The notification arrives after the bytes and says which part they are. The backward
pass is a stand-in: it sleeps, as a processor does that waits for its GPU. Gradients are whole numbers: their sums are exact.
"""

import concurrent.futures
import statistics
import time

import numpy as np

from nixl_gorail.examples import group

PIECES = 4  # of a bucket, in the tree: one goes up while the next is summed
PERIOD = 65537  # elements after which a gradient repeats itself


def gradient(rank, bucket):
    return np.random.default_rng((rank, bucket)).integers(-1000, 1001, PERIOD).astype(np.float32)


class AllReduce:
    """The buckets of one rank, and scratch memory for what its peers write. It sums one bucket at a time."""

    def __init__(self, member, args):
        self.member, self.names, self.rank, self.size = member, member.names, member.names.index(member.name), args.ranks
        self.count = (args.bucket_mib << 20) // 4
        self.buckets = [member.zeros(self.count, "float32") for _ in range(args.buckets)]
        self.scratch = member.zeros(2 * self.count, "float32")  # two children's buckets, or a ring's chunks
        self.here = [group.described(bucket) for bucket in self.buckets]
        self.there = member.meet((self.here, group.described(self.scratch)))

    def send(self, peer, bucket, first, last, message, scratch=None):
        """WRITEs elements to the same place of the peer's bucket, or to its scratch memory from element `scratch` on."""
        (buckets, other), size = self.there[peer], (last - first) * 4
        memory, at = (buckets[bucket], first * 4) if scratch is None else (other, scratch * 4)
        self.member.post("WRITE", group.within(self.here[bucket], first * 4, last * 4), peer, group.within(memory, at, at + size), message)

    def add(self, bucket, first, last, scratch):
        self.buckets[bucket][first:last] += self.scratch[scratch:scratch + last - first]
        group.finish_gpu(self.buckets[bucket])

    def parts(self, number):
        edges = [self.count * i // number for i in range(number + 1)]
        return list(zip(edges, edges[1:]))

    def ring(self, bucket):
        member, rank, size, chunks = self.member, self.rank, self.size, self.parts(self.size)
        left, right = self.names[rank - 1], self.names[(rank + 1) % size]
        for step in range(size - 1):  # reduce-scatter: in the end this rank has the sum of chunk rank + 1
            message, slot = b"%d sum %d" % (bucket, step), step * (self.count // size + 1)
            self.send(right, bucket, *chunks[(rank - step) % size], message, slot)
            member.expect(left, message)
            self.add(bucket, *chunks[(rank - step - 1) % size], slot)
        member.finish()  # the bucket has been read. From here on the left peer may write into it.
        member.tell(left, b"%d free" % bucket)
        member.expect(right, b"%d free" % bucket)
        for step in range(size - 1):  # all-gather
            message = b"%d copy %d" % (bucket, step)
            self.send(right, bucket, *chunks[(rank + 1 - step) % size], message)
            member.expect(left, message)
        member.finish()

    def tree(self, bucket):
        member, rank, pieces = self.member, self.rank, self.parts(PIECES)
        parent, children = self.names[(rank - 1) // 2], self.names[2 * rank + 1:2 * rank + 3]
        for n, (first, last) in enumerate(pieces):
            for i, child in enumerate(children):
                member.expect(child, b"%d sum %d" % (bucket, n))
                self.add(bucket, first, last, i * self.count + first)
            if rank > 0:
                self.send(parent, bucket, first, last, b"%d sum %d" % (bucket, n), (rank - 1) % 2 * self.count + first)
        member.finish()
        if rank > 0:
            member.tell(parent, b"%d free" % bucket)
        for child in children:
            member.expect(child, b"%d free" % bucket)
        for n, (first, last) in enumerate(pieces):
            if rank > 0:
                member.expect(parent, b"%d copy %d" % (bucket, n))
            for child in children:
                self.send(child, bucket, first, last, b"%d copy %d" % (bucket, n))
        member.finish()


def step(sync, buckets, compute, before_last):
    """A backward pass, last layer first. A thread sums the buckets that are ready. Returns seconds."""
    start, sums, thread = time.perf_counter(), [], concurrent.futures.ThreadPoolExecutor(1)
    try:
        for bucket in reversed(range(buckets)):
            time.sleep(compute)
            if bucket == 0:
                before_last()
            if sync:
                sums.append(thread.submit(sync, bucket))
        for one in sums:
            one.result()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
    return time.perf_counter() - start


def run(member, args):
    work, results = AllReduce(member, args), {}
    expected = [sum(gradient(rank, bucket) for rank in range(args.ranks)) for bucket in range(args.buckets)]
    for algorithm in args.algorithm.split(","):
        seconds, sync = {"without": [], "alone": [], "with": []}, getattr(work, algorithm)
        for n in range(args.steps):
            for kind, compute in (("without", args.compute_ms), ("alone", 0), ("with", args.compute_ms)):
                for bucket, array in enumerate(work.buckets):
                    group.fill(array, np.resize(gradient(work.rank, bucket), work.count))
                member.gather()
                took = step(None if kind == "without" else sync, args.buckets, compute / 1e3, lambda: member.die_if_told(kind == "with"))
                seconds[kind].append(max(member.gather(took).values()))
                for bucket, array in enumerate(work.buckets if kind != "without" else []):
                    if not (group.host(array) == np.resize(expected[bucket], work.count)).all():
                        raise RuntimeError(f"{algorithm}: bucket {bucket} is not the sum of the ranks' gradients")
        times = {kind: statistics.median(values) for kind, values in seconds.items()}
        moved = 2 * (args.ranks - 1) / args.ranks * args.buckets * work.count * 4  # bytes over each rank's link in a ring
        results[algorithm] = {"seconds_without": times["without"], "seconds_with": times["with"], "seconds_sync_alone": times["alone"],
                              "overhead_percent": 100 * (times["with"] / times["without"] - 1),
                              "bus_gb_per_s": moved / times["alone"] / 1e9, "checksums": [group.checksum(b) for b in work.buckets]}
    return results


def main():
    parser = group.parser(__doc__)
    for option, default in (("--ranks", 4), ("--buckets", 8), ("--bucket-mib", 25), ("--steps", 3)):
        parser.add_argument(option, type=group.positive, default=default)
    parser.add_argument("--compute-ms", type=float, default=50, help="backward pass, for each bucket")
    parser.add_argument("--algorithm", choices=("ring", "tree", "ring,tree"), default="ring,tree")
    args = group.parse(parser, lambda args: [f"rank {n}" for n in range(args.ranks)])
    if args.ranks < 2 or args.compute_ms < 0:
        parser.error("a sum needs two --ranks, and --compute-ms is not negative")
    first, *others = group.launch(run, args).values()
    for algorithm, r in first.items():
        assert all(other[algorithm]["checksums"] == r["checksums"] for other in others), "the ranks have different sums"
        print(f"{algorithm}: backward pass {r['seconds_without']:.3f} s, with sync {r['seconds_with']:.3f} s ({r['overhead_percent']:+.0f} %), "
              f"sync alone {r['seconds_sync_alone']:.3f} s, bus {r['bus_gb_per_s']:.2f} GB/s")
    group.write_json(args, first)
    print(f"{args.backend}: {args.buckets} buckets of {args.bucket_mib} MiB on {args.ranks} ranks, sums exact, every byte verified")


if __name__ == "__main__":
    main()
