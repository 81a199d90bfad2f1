"""The target of a scenario, see common.serve. With argv[3] fork, a child of the target lives for a minute."""

import os
import select
import sys
import time

import common

a = common.agent("bob")
mem, desc = common.buffer(a, int(sys.argv[2]), 2)
print("@target", mem.ctypes.data, a.get_agent_metadata().hex(), flush=True)
if sys.argv[3:] == ["fork"]:
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    print("@child", pid, flush=True)
while True:
    a.get_new_notifs()
    if select.select([sys.stdin], [], [], 0.001)[0]:
        break  # the parent is gone
