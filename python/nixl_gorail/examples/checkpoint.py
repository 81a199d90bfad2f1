"""Ranks save the shards of their state dict to a store process, in its memory and in a file, and restore them.

    python -m nixl_gorail.examples.checkpoint [--backend GORAIL] [--ranks 4] [--mib 256] [--chunk-mib 8] [--dir /scratch]

A rank WRITEs chunks into the store's memory. A chunk is a list of regions: some small tensors, or a part of a large one. For a file
the store's agent has NIXL's POSIX plugin, too, and a few slots for each rank: a slot is free again when the file has its chunk.
The way back is the same: the store fills slots, and the ranks READ them. `gorail plugins` makes a folder that has both plugins.
"""

import itertools
import os
import tempfile
import time

import numpy as np

from nixl_gorail.examples import group

SLOTS = 4  # of each rank, between the wire and the file
SHAPES = {"embedding": ("float32", 8), "layers.weight": ("float16", 7), "head": ("float32", 1)}  # type, sixteenths of the bytes


def chunks_of(state, size):
    """Cuts the tensors, one after the other, into chunks. Returns the regions of each."""
    chunks, done = [], 0
    for tensor in state.values():
        kind, [(start, left, device)] = group.described(tensor)
        while left > 0:
            if done % size == 0:
                chunks.append((kind, []))
            take = min(left, size - done % size)
            chunks[-1][1].append((start, take, device))
            start, left, done = start + take, left - take, done + take
    return chunks


def beside(chunk, memory, offset):
    """As many regions of memory, from offset on, as the chunk has."""
    (kind, [(start, _, device)]), sizes = memory, [size for _, size, _ in chunk[1]]
    return kind, [(start + offset + before, size, device) for before, size in zip(itertools.accumulate([0, *sizes]), sizes)]


def rank(member, args):
    state = {name: member.zeros((args.mib << 16) * n // np.dtype(kind).itemsize, kind) for name, (kind, n) in SHAPES.items()}
    state["step"] = member.zeros(1, "int64")
    chunks, (memory, places) = chunks_of(state, args.chunk_bytes), member.meet(None)["store"]
    first = member.names.index(member.name) * args.chunks
    for place, slots in places.items():
        for tensor in state.values():
            group.fill(tensor, np.resize(np.random.default_rng(first + slots).integers(0, 1000, 65537), len(tensor)))
        sums = {name: group.checksum(tensor) for name, tensor in state.items()}
        there = [beside(chunk, memory, (first + i % slots) * args.chunk_bytes) for i, chunk in enumerate(chunks)]
        member.gather()
        for i in range(args.chunks + slots):
            if i == args.chunks // 2:
                member.die_if_told()
            if i >= slots:
                member.expect("store", b"%d" % (i - slots))
            if i < args.chunks:
                member.post("WRITE", chunks[i], "store", there[i], b"%d" % i)
        for tensor in state.values():
            group.fill(tensor, np.zeros(len(tensor), int))
        member.gather()
        for i in range(args.chunks):
            member.expect("store", b"%d" % i)
            member.post("READ", chunks[i], "store", there[i], b"%d" % i)
        member.finish()
        for name, tensor in state.items():
            if group.checksum(tensor) != sums[name]:
                raise RuntimeError(f"{name}, restored from {place}, is not what was saved")


def serve(member, args, memory, file, slots, restore):
    """Saving: rank -> slot -> file. Restoring: file -> slot -> rank. Messages have a chunk's number. Returns seconds."""
    ranks, moving, start = member.names[:-1], {}, time.perf_counter()
    left = len(ranks) * args.chunks

    def move(name, i):
        if file is None:  # the chunk stays where it is
            return member.tell(name, b"%d" % i)
        n, length = ranks.index(name), min(args.chunk_bytes, args.shard_bytes - i * args.chunk_bytes)
        slot, at = (n * args.chunks + i % slots) * args.chunk_bytes, n * args.shard_bytes + i * args.chunk_bytes
        here, operation = group.within(memory, slot, slot + length), "READ" if restore else "WRITE"
        moving[member.post(operation, here, "store", ("FILE", [(at, length, file)]), b"", "POSIX")] = name, i

    def step():
        nonlocal left
        arrived = [(name, int(messages.pop(0))) for name, messages in member.news().items() if messages]
        for name, i in arrived:
            left -= 1
            if not restore or i + slots < args.chunks:
                move(name, i + slots if restore else i)
        moved = [moving.pop(handle) for handle in list(moving) if handle not in member.posted]
        for name, i in moved:
            member.tell(name, b"%d" % i)
        return arrived or moved

    for name, i in itertools.product(ranks, range(min(slots, args.chunks) if restore else 0)):
        move(name, i)
    while left or moving:
        group.wait("a chunk", step)
        member.die_if_told(left < len(ranks) * args.chunks // 2)
    if file is not None:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # a restore reads the disk
    return time.perf_counter() - start


def store(member, args):
    member.device, ranks, places, results = "numpy", member.names[:-1], {"memory": args.chunks}, {}
    buffer, whole = member.zeros(len(ranks) * args.chunks * args.chunk_bytes, "uint8"), len(ranks) * args.shard_bytes
    kind, [region] = memory = group.described(buffer)
    with tempfile.TemporaryFile(dir=args.dir) as file:
        if "POSIX" in member.agent.get_plugin_list():
            places["file"] = min(SLOTS, args.chunks)
            os.truncate(file.fileno(), whole)
            with group.during("NIXL's POSIX plugin"):
                member.agent.create_backend("POSIX")
                member.agent.register_memory([(*region, "")], kind, ["POSIX"])
                member.agent.register_memory([(0, whole, file.fileno(), "")], "FILE", ["POSIX"])
        member.meet((memory, places))
        for place, slots in places.items():
            for word in ("save", "restore"):
                if (place, word) == ("file", "restore"):
                    buffer[:] = 0  # the bytes come from the file alone
                member.gather()
                took = serve(member, args, memory, file.fileno() if place == "file" else None, slots, word == "restore")
                results.setdefault(place, {})[word + "_gb_per_s"] = whole / took / 1e9
    return results


def main():
    parser = group.parser(__doc__)
    for option, default in (("--ranks", 4), ("--mib", 256), ("--chunk-mib", 8)):
        parser.add_argument(option, type=group.positive, default=default)
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="folder of the file")
    args = group.parse(parser, lambda args: [*(f"rank {n}" for n in range(args.ranks)), "store"])
    args.shard_bytes, args.chunk_bytes = (args.mib << 20) + 8, args.chunk_mib << 20
    args.chunks = -(-args.shard_bytes // args.chunk_bytes)  # of each rank
    results = group.launch(rank, args, store=store)["store"]
    for place, r in (("memory", results["memory"]), ("file", results.get("file"))):
        print(f"{place}: " + (f"saved with {r['save_gb_per_s']:.2f} GB/s, restored with {r['restore_gb_per_s']:.2f} GB/s" if r else "no plugin POSIX"))
    group.write_json(args, results)
    print(f"{args.backend}: {args.mib} MiB of each of {args.ranks} ranks saved and restored, every byte verified")


if __name__ == "__main__":
    main()
