"""Creating a backend does not change the process's signals. Ctrl-C still works."""

import os
import signal
import sys
import time

import common


def caught():
    with open("/proc/self/status") as f:
        return {k: int(v, 16) for k, _, v in (line.partition(":") for line in f) if k in ("SigCgt", "SigIgn", "SigBlk")}


hits = []
signal.signal(signal.SIGTERM, lambda *_: hits.append("term"))
signal.signal(signal.SIGUSR1, lambda *_: hits.append("usr1"))
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE, signal.SIGCHLD)}
before = caught()
a = common.agent("alice")
mem, local = common.buffer(a, 65536, 1)
h = common.request(a, "WRITE", [(local[0][0], 100, 0)], [(local[0][0] + 1000, 100, 0)], "alice")
common.finish(a, h, a.transfer(h))
after = caught()
for s, f in handlers.items():
    assert signal.getsignal(s) == f, s

changed = [n for n in range(1, 65) for k in before if (before[k] ^ after[k]) >> (n - 1) & 1]
print("changed in /proc/self/status:", [signal.Signals(n).name if n < 32 else n for n in changed])
for n in (signal.SIGTERM, signal.SIGUSR1):
    os.kill(os.getpid(), n)
time.sleep(0)  # lets Python run its handlers
assert hits == ["term", "usr1"], hits

r, w = os.pipe()
os.close(r)
try:
    os.write(w, b"x")
    sys.exit("a write to a closed pipe succeeded")
except BrokenPipeError:
    pass

started = time.monotonic()
signal.setitimer(signal.ITIMER_REAL, 0)
pid = os.getpid()
r, w = os.pipe()
if os.fork() == 0:
    os.read(r, 1)
    os.kill(pid, signal.SIGINT)
    os._exit(0)
try:
    os.write(w, b"x")  # not before fork returns: fork warns of threads, and swallows a KeyboardInterrupt during the warning
    time.sleep(5)
    sys.exit("SIGINT was lost")
except KeyboardInterrupt:
    assert time.monotonic() - started < 2, "SIGINT came late"
os.wait()
# Go turns its own faults into panics.
allowed = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE}
bad = [n for n in changed if n not in allowed]
if bad:
    sys.exit(f"signal dispositions changed: {bad}")
print("ok")
