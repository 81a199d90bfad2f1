"""A killed peer with a live forked child raises nixlRemoteDisconnectError within two seconds.

argv[2] is the peer's place: in this pid namespace, or apart in another, where only its connections show its death.
"""

import os
import sys
import time

import common

size = 65536
apart = sys.argv[2] == "apart"
# The peer is not the first process of its namespace: the death of that process would end the peer's child, too.
before = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", '"$@"; sleep 60', "sh"] if apart else []
child, md, remote = common.serve(size, "fork", before=before)


def offspring(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(p) for p in f.read().split()]


target = child.pid
while apart and "target.py" not in open(f"/proc/{target}/cmdline").read().split("\0")[1]:
    (target,) = offspring(target)
end = time.monotonic() + 10
while not offspring(target):
    assert time.monotonic() < end, "the target has no child"
    time.sleep(0.01)
(orphan,) = offspring(target)

a = common.agent("alice")
mem, local = common.buffer(a, size, 1)
peer = a.add_remote_agent(md)
h = common.request(a, "WRITE", local, remote, peer)
try:
    assert common.finish(a, h, a.transfer(h)) == "DONE"
    os.kill(target, 9)
    began = time.monotonic()
    while True:
        try:
            common.finish(a, h, a.transfer(h), 5)
        except common.bindings.nixlRemoteDisconnectError:
            break
        if time.monotonic() > began + 5:
            sys.exit("no nixlRemoteDisconnectError within 5 s")
    took = time.monotonic() - began
    os.kill(orphan, 0)  # the orphan must be alive
    print(f"nixlRemoteDisconnectError after {took * 1e3:.1f} ms")
    if took > 2:
        sys.exit("too late")
finally:
    os.kill(orphan, 9)
    child.kill()
    child.wait(10)
print("ok")
