"""A killed peer raises nixlRemoteDisconnectError within two seconds.

argv[2] is the moment of the kill: idle or inflight; argv[3] is the operation;
argv[4] is the progress thread, 0 or 1.
"""

import sys
import time

import common

when, op, prog = sys.argv[2], sys.argv[3], sys.argv[4] == "1"
size = (64 << 20) if when == "inflight" else 65536
child, md, remote = common.serve(size)
a = common.agent("alice", prog)
mem, local = common.buffer(a, size, 1)
peer = a.add_remote_agent(md)
h = common.request(a, op, local, remote, peer)
assert common.finish(a, h, a.transfer(h)) == "DONE"

if when == "inflight":
    a.transfer(h)
common.kill(child)
began = time.monotonic()
seen = []
while time.monotonic() < began + 10:
    try:
        # A transfer that had completed before the kill is posted again.
        state = common.finish(a, h, "PROC" if when == "inflight" and not seen else a.transfer(h), 5)
        seen.append(state)
        if state == "PROC":
            sys.exit("still in progress 5 s after the peer's death")
    except common.bindings.nixlRemoteDisconnectError:
        took = time.monotonic() - began
        print(f"nixlRemoteDisconnectError after {took * 1e3:.1f} ms, before it {len(seen)} x {set(seen)}")
        if took > 2:
            sys.exit("too late")
        break
    except Exception as e:
        sys.exit(f"{type(e).__name__} instead of nixlRemoteDisconnectError: {e}")
else:
    sys.exit(f"no error within 10 s: {set(seen)}")

# The peer returns under its name and is used again.
a.release_xfer_handle(h)
try:
    a.remove_remote_agent(peer)
except common.bindings.nixlNotFoundError:
    pass  # the agent has already forgotten the peer
child, md, remote = common.serve(size)
peer = a.add_remote_agent(md)
h = common.request(a, op, local, remote, peer)
assert common.finish(a, h, a.transfer(h)) == "DONE"
a.release_xfer_handle(h)
common.kill(child)
print("ok")
