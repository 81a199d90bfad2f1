"""estimate_xfer_cost works before a first transfer, for any size, and afterwards."""

import common

a, b = common.agent("ann"), common.agent("bob")
size = 16 << 20
src, here = common.buffer(a, size, 1)
dst, there = common.buffer(b, size, 2)
a.add_remote_agent(b.get_agent_metadata())


def cost(op, n, peer="bob"):
    far = there if peer == "bob" else here
    h = common.request(a, op, [(here[0][0], n, 0)], [(far[0][0] + size - n, n, 0)], peer)
    us, margin, _ = a.estimate_xfer_cost(h)
    a.release_xfer_handle(h)
    assert us >= 0 and margin >= 0, (us, margin)
    return us


def grow(when):
    for op in ("READ", "WRITE"):
        costs = [cost(op, n) for n in (1, 4096, 1 << 20, size)]
        print(when, op, costs, flush=True)
        assert costs == sorted(costs) and costs[0] < costs[-1], costs


grow("before")
cost("WRITE", 4096, "ann")
for n in (4096, size):
    for _ in range(3):
        h = common.request(a, "WRITE", [(here[0][0], n, 0)], [(there[0][0], n, 0)], "bob")
        assert common.finish(a, h, a.transfer(h)) == "DONE"
grow("after")
print("\nok", flush=True)
