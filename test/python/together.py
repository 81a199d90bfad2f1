"""Other backends beside GORAIL in one agent, all in use. argv[2:] names them, in the order of their creation."""

import os
import sys
import tempfile

import numpy as np

import common
from common import api

SIZE = 1 << 20

names = sys.argv[2:]
a = api.nixl_agent("all", api.nixl_agent_config(enable_prog_thread=True, backends=[]))
for name in names:
    a.create_backend(name)


def network(name):
    common.BACKEND = name
    src, here = common.buffer(a, SIZE, 1)
    dst, there = common.buffer(a, SIZE, 2)
    for op, moved in (("WRITE", 1), ("READ", 2)):
        src[:], dst[:] = 1, 2
        h = common.request(a, op, here, there, "all", b"from " + name.encode())
        assert common.finish(a, h, a.transfer(h)) == "DONE", (name, op)
        assert (src == moved).all() and (dst == moved).all(), (name, op)
        a.release_xfer_handle(h)


def file(name):
    common.BACKEND = name
    with tempfile.TemporaryFile() as f:
        f.write(bytes(SIZE))
        f.flush()
        mem, here = common.buffer(a, SIZE, 7)
        on_disk = [(0, SIZE, f.fileno())]
        a.register_memory([d + ("",) for d in on_disk], mem_type="FILE", backends=[name])
        for op in ("WRITE", "READ"):
            h = a.initialize_xfer(
                op, a.get_xfer_descs(here, "DRAM"), a.get_xfer_descs(on_disk, "FILE"), "all", backends=[name]
            )
            assert common.finish(a, h, a.transfer(h)) == "DONE", (name, op)
            a.release_xfer_handle(h)
            if op == "WRITE":
                assert os.pread(f.fileno(), SIZE, 0) == bytes([7]) * SIZE, name
                mem[:] = 0
        assert (mem == 7).all(), name


work = {"GORAIL": network, "UCX": network, "POSIX": file, "GDS_MT": file}
for name in names * 2:  # each again, after all the others
    work[name](name)
print("\nok", flush=True)
