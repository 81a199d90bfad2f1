"""Common parts of the scenarios: agents, buffers, bounded waits.

Every scenario is a program: argv[1] is the plugin, exit status 0 means passed.
"""

import os
import signal
import subprocess
import sys
import time

import numpy as np

try:
    from nixl_cu12 import _api as api
    from nixl_cu12 import _bindings as bindings
except ImportError:  # the wheel for another CUDA version
    from nixl_cu13 import _api as api
    from nixl_cu13 import _bindings as bindings

BACKEND = sys.argv[1]


def agent(name, prog=True):
    return api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=prog, backends=[BACKEND]))


def buffer(a, size, value):
    """Returns an array and its one descriptor, registered."""
    mem = np.full(size, value, dtype=np.uint8)
    desc = [(mem.ctypes.data, size, 0)]
    a.register_memory([d + ("",) for d in desc], mem_type="DRAM", backends=[BACKEND])
    return mem, desc


def request(a, op, local, remote, peer, notif=b""):
    return a.initialize_xfer(
        op, a.get_xfer_descs(local, "DRAM"), a.get_xfer_descs(remote, "DRAM"), peer, notif, backends=[BACKEND]
    )


def finish(a, handle, state, seconds=20):
    end = time.monotonic() + seconds
    while state == "PROC" and time.monotonic() < end:
        state = a.check_xfer_state(handle)
    return state


def serve(size, *args, before=()):
    """Starts a child that prints its metadata and buffer, then polls until killed. before: a command to start it with."""
    child = subprocess.Popen(
        [*before, sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "target.py"), BACKEND, str(size), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    for line in child.stdout:  # NIXL logs to the same stream
        if line.startswith(b"@target "):
            _, addr, md = line.split()
            return child, bytes.fromhex(md.decode()), [(int(addr), size, 0)]
    sys.exit("the target did not start")


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.wait(10)
