"""Memory that peers may only read, or only write, by the fourth field of a registration or by option: the rest is NIXL_ERR_NOT_ALLOWED."""

import time

import numpy as np

import common
from common import BACKEND, api, bindings

a = common.agent("ann")
b = api.nixl_agent("bob", api.nixl_agent_config(backends=[]))
b.create_backend(BACKEND, {"remote_access": "write"})
size = 1 << 20
mine, here = common.buffer(a, size, 1)
writable, there = common.buffer(b, size, 2)
readable = np.full(size, 3, dtype=np.uint8)
at = (readable.ctypes.data, size, 0)
b.register_memory([at + ("remote_access=read",)], mem_type="DRAM", backends=[BACKEND])
a.add_remote_agent(b.get_agent_metadata())


def refused(op, remote):
    h = common.request(a, op, here, remote, "bob", b"never")
    for _ in range(3):  # the first post knows no keys yet
        try:
            raise AssertionError(common.finish(a, h, a.transfer(h)))
        except bindings.nixlNotAllowedError:
            pass
    a.release_xfer_handle(h)
    assert (mine == 1).all() and (writable == 2).all() and (readable == 3).all()


refused("WRITE", [at])
refused("READ", there)
for op, remote, n, notif in (("WRITE", there, 1, b"written"), ("READ", [at], 3, b"read")):
    h = common.request(a, op, here, remote, "bob", notif)
    assert common.finish(a, h, a.transfer(h)) == "DONE"
    assert (mine == n).all()
assert (writable == 1).all() and (readable == 3).all()

got, end = [], time.monotonic() + 40
while len(got) < 2 and time.monotonic() < end:
    got += b.get_new_notifs().get("ann", [])
assert got == [b"written", b"read"], got

# One range has one access; a misspelt one is refused.
for text, error in (("remote_access=both", bindings.nixlNotAllowedError), ("remote_access=raed", bindings.nixlInvalidParamError)):
    try:
        b.register_memory([at + (text,)], mem_type="DRAM", backends=[BACKEND])
    except (error, bindings.nixlBackendError) as e:
        print(text, repr(e), flush=True)
    else:
        raise AssertionError(text)
print("\nok", flush=True)
