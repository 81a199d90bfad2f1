"""A forked child that uses its agent gets an error and does not hang. The parent keeps working."""

import os
import sys
import time

import common

size = 1 << 20
child, md, remote = common.serve(size)
a = common.agent("alice")
mem, local = common.buffer(a, size, 1)
peer = a.add_remote_agent(md)
h = common.request(a, "WRITE", local, remote, peer, b"n")
assert common.finish(a, h, a.transfer(h)) == "DONE"

log, log_in = os.pipe()
pid = os.fork()
if pid == 0:
    os.dup2(log_in, 2)
    tried, errors = 0, 0
    for call in (
        lambda: a.transfer(h),
        lambda: common.request(a, "WRITE", local, remote, peer),
        lambda: a.send_notif(peer, b"from the child"),
        lambda: a.get_new_notifs(),
    ):
        tried += 1
        try:
            errors += call() == "ERR"
        except Exception as e:
            errors += 1
            print("child:", type(e).__name__, e, flush=True)
    # At least the calls that would reach the peer must have failed.
    os._exit(0 if errors >= 2 else 3)

status = None
end = time.monotonic() + 10
while status is None and time.monotonic() < end:
    done, code = os.waitpid(pid, os.WNOHANG)
    if done:
        status = code
    else:
        time.sleep(0.01)
if status is None:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
for _ in range(20):
    mem[:] = 7
    assert common.finish(a, h, a.transfer(h)) == "DONE", "the parent's transfers stopped"
    back, back_desc = mem, local
r = common.request(a, "READ", local, remote, peer)
mem[:] = 0
assert common.finish(a, r, a.transfer(r)) == "DONE"
assert (mem == 7).all(), "the parent reads wrong bytes"
common.kill(child)
if status is None:
    sys.exit("the forked child hangs")
if status != 0:
    sys.exit(f"the forked child ended with wait status {status}: no error on its calls")
os.close(log_in)
lines = []
with os.fdopen(log) as f:
    lines = [line for line in f if "GR-1007" in line]
assert len(lines) == 1 and f"pid={pid} " in lines[0], lines
print("ok")
