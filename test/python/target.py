"""The far side of a scenario; see common.serve."""

import select
import sys

import common

a = common.agent("bob")
mem, desc = common.buffer(a, int(sys.argv[2]), 2)
print("@target", mem.ctypes.data, a.get_agent_metadata().hex(), flush=True)
while True:
    a.get_new_notifs()
    if select.select([sys.stdin], [], [], 0.001)[0]:
        break  # the parent is gone
