"""An agent whose child of fork lives on: prints the child's number, and waits to be killed. TestRosterForked reads the roster meanwhile."""

import os
import signal

import common

a = common.agent("alice")
child = os.fork()
if child == 0:
    signal.pause()
    os._exit(0)
print(f"@child {child}", flush=True)
signal.pause()
