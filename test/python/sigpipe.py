"""SIGPIPE has its default action, set after the plugin was loaded: whoever raises it ends this process.

Other agents start on the host, readers of the statistics hang up, a peer is killed under transfers, and the log loses its reader. The log has
a pipe of its own, because NIXL's agent writes to standard error, too.
"""

import glob
import os
import signal
import socket
import subprocess
import sys

import common

if sys.argv[-1] == "newcomer":
    common.agent("newcomer")
    os._exit(0)

folder = os.environ["GORAIL_STATS_SOCKET"]
reads, writes = os.pipe()
os.environ["GORAIL_LOG_FILE"] = f"/dev/fd/{writes}"
a = common.agent("alice")
del os.environ["GORAIL_LOG_FILE"]
mem, local = common.buffer(a, 1 << 20, 1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)

for _ in range(3):  # each looks for sockets of dead processes
    subprocess.run([sys.executable, __file__, common.BACKEND, "newcomer"], check=True)

own = glob.glob(os.path.join(folder, "stats-*.sock"))
assert own, folder
for request in (b"", b"snapshot\n", b"what\n", b"trace 60\n", b"snap"):
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(own[0])
            s.send(request)

child, md, remote = common.serve(1 << 20)
peer = a.add_remote_agent(md)
peer = peer.decode() if isinstance(peer, bytes) else peer
h = common.request(a, "WRITE", local, remote, peer, b"n")
assert common.finish(a, h, a.transfer(h)) == "DONE"

os.set_blocking(reads, False)
assert b"msg=rails" in os.read(reads, 1 << 16)
os.close(reads)
child.kill()
for _ in range(50):
    try:
        if common.finish(a, h, a.transfer(h)) == "DONE":
            continue
    except Exception:  # the peer is gone: each error is a line in the log, too
        pass
child.wait()
os.environ["GORAIL_LOG_FILE"] = f"/dev/fd/{writes}"
common.agent("bob")  # logs its start to the broken pipe, at level info
print("alive", flush=True)
