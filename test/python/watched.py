"""An agent that others look at: it writes to a peer in another process each 20 ms, until SIGTERM ends it or stdin is closed.

argv[2]: "plain", or "handler": the program handles SIGTERM itself, and ends with status 7.
"""

import os
import signal
import sys
import threading
import time

import common

SIZE = 1 << 20
os.environ["GORAIL_STATS_FILE"], mine = "", os.environ.get("GORAIL_STATS_FILE", "")
child, md, there = common.serve(SIZE, "quiet")
os.environ["GORAIL_STATS_FILE"] = mine
if sys.argv[2] == "handler":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
a = common.agent("ann/1")
mem, here = common.buffer(a, SIZE, 3)
peer = a.add_remote_agent(md)
handle = common.request(a, "WRITE", here, there, peer)
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
said = False
try:
    while not done.is_set():
        assert common.finish(a, handle, a.transfer(handle)) == "DONE"
        if not said:
            said = print("@writes", flush=True) is None
        time.sleep(0.02)
finally:
    common.kill(child)
