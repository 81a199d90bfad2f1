"""Ranges that are not memory are refused. Also checks the effect on the agent's metadata, and on stock UCX where it refuses.

A refused registration leaves an empty list of the memory type in the agent's metadata (NIXL 1.5), which no peer can load. A
successful registration of that type repairs the metadata. Deregistering an empty list also does.
"""

import common
from common import BACKEND, api, bindings

ours = BACKEND == "GORAIL"
types = {"DRAM": bindings.DRAM_SEG, "FILE": bindings.FILE_SEG, "BLOCK": bindings.BLK_SEG, "OBJ": bindings.OBJ_SEG}
peers = 0


def registers(a, addr, size, mem="DRAM"):
    try:
        a.register_memory([(addr, size, 0, "")], mem_type=mem, backends=[BACKEND])
    except bindings.nixlBackendError:
        return False
    return True


def loadable(a):
    global peers
    peers += 1
    try:
        common.agent(f"peer{peers}").add_remote_agent(a.get_agent_metadata())
    except bindings.nixlNotFoundError:
        return False
    return True


def forget(a, mem):
    a.deregister_memory(bindings.nixlRegDList(types[mem]), backends=[BACKEND])


a = common.agent("first")
assert loadable(a)
assert not registers(a, 0, 4096)
assert not registers(a, 2**64 - 4096, 8192)
assert not registers(a, 2**64 - 4096, 4096)
assert not loadable(a), "NIXL does without empty lists now: the advice in the log is out of date"
mem, desc = common.buffer(a, 1 << 20, 1)
assert loadable(a), "a good registration heals it"
assert not registers(a, 0, 4096)
assert loadable(a), "there is good memory of the type"
assert registers(a, desc[0][0], 0), "no bytes are nobody's"

# Files are not memory: UCX treats their offset as an address and refuses only 0.
for kind in ("FILE", "BLOCK", "OBJ"):
    assert not registers(a, 0, 4096, kind)
    assert not loadable(a)
    forget(a, kind)
    assert loadable(a), "an empty list that is deregistered is gone"
    assert registers(a, desc[0][0], 4096, kind) != ours
    if ours:
        forget(a, kind)

# The registered memory can be used as before.
b = common.agent("second")
to, there = common.buffer(b, 1 << 20, 2)
a.add_remote_agent(b.get_agent_metadata())
h = common.request(a, "WRITE", desc, there, "second")
assert common.finish(a, h, a.transfer(h)) == "DONE"
assert (to == 1).all()
print("\nok", flush=True)
