"""One call of NIXL that frameworks make: argv[2] names it. docs/frameworks.md says which framework makes which.

A wheel without the call prints a line that begins with "skip: ".
"""

import inspect
import os
import socket
import sys
import time

import numpy as np

import common
from common import BACKEND, api, bindings

BLOCK, BLOCKS = 4096, 256
SIZE = BLOCK * BLOCKS


class Pair:
    """Agents ann and bob, a buffer of each: 1 and 2. ann has loaded bob's metadata."""

    def __init__(self, load=True, **config):
        def agent(name):
            return api.nixl_agent(name, api.nixl_agent_config(backends=[BACKEND], **config))

        self.a, self.b = agent("ann"), agent("bob")
        (self.mine, self.here), (self.theirs, self.there) = common.buffer(self.a, SIZE, 1), common.buffer(self.b, SIZE, 2)
        if load:
            self.a.add_remote_agent(self.b.get_agent_metadata())

    def write(self):
        handle = common.request(self.a, "WRITE", self.here, self.there, "bob", b"n")
        assert common.finish(self.a, handle, self.a.transfer(handle)) == "DONE"
        assert (self.theirs == self.mine).all()
        return handle


def fails(error, call, *args, **keywords):
    """The call raises exactly this error."""
    try:
        got = call(*args, **keywords)
    except error as e:
        assert type(e) is error, repr(e)
    else:
        raise AssertionError(f"{call.__name__} returned {got!r}, expected {error.__name__}")


def until(what, done, seconds=20):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def blocks(desc):
    return [(desc[0][0] + i * BLOCK, BLOCK, 0) for i in range(BLOCKS)]


def prepared(p, local, remote):
    """Blocks by number, both ways: as a list and as arrays of 32 and of 64 bits, with and without the backend's name."""
    random = np.random.default_rng(7)
    here, there = p.mine.reshape(BLOCKS, BLOCK), p.theirs.reshape(BLOCKS, BLOCK)
    for n, kind in enumerate((list, np.int32, np.int64)):
        for op in ("WRITE", "READ"):
            here[:], there[:] = random.integers(0, 256, here.shape, np.uint8), random.integers(0, 256, there.shape, np.uint8)
            ours, others = random.permutation(BLOCKS)[:100], random.permutation(BLOCKS)[:100]
            want_here, want_there = here.copy(), there.copy()
            if op == "WRITE":
                want_there[others] = here[ours]
            else:
                want_here[ours] = there[others]
            as_kind = (lambda x: x.tolist()) if kind is list else (lambda x: x.astype(kind))
            note = f"{op} {n}".encode()
            handle = p.a.make_prepped_xfer(op, local, as_kind(ours), remote, as_kind(others), note, [BACKEND] if n else [])
            assert p.a.query_xfer_backend(handle) == BACKEND
            assert common.finish(p.a, handle, p.a.transfer(handle)) == "DONE"
            assert (here == want_here).all() and (there == want_there).all(), (op, kind)
            until(note, lambda: note in p.b.get_new_notifs().get("ann", []))
            p.a.release_xfer_handle(handle)
    for ours, others in (([0], [BLOCKS]), ([-1], [0]), ([0, 1], [0]), ([], [])):
        fails(bindings.nixlInvalidParamError, p.a.make_prepped_xfer, "WRITE", local, ours, remote, others)


def make_prepped_xfer():
    p = Pair()
    local, remote = p.a.prep_xfer_dlist("NIXL_INIT_AGENT", blocks(p.here), "DRAM"), p.a.prep_xfer_dlist("bob", blocks(p.there), "DRAM")
    prepared(p, local, remote)
    beyond = [(p.there[0][0] + SIZE - 1, BLOCK, 0)]
    fails(bindings.nixlNotFoundError, p.a.prep_xfer_dlist, "bob", beyond, "DRAM")
    fails(bindings.nixlNotFoundError, p.a.prep_xfer_dlist, "nobody", blocks(p.there), "DRAM")
    p.a.release_dlist_handle(local)
    p.a.release_dlist_handle(remote)


def strided():
    """Rows of (address, length, device, stride, count). Every second block of both sides; then all of them, packed."""
    if "strided" not in inspect.getsource(api.nixl_agent.prep_xfer_dlist):
        print("skip: this wheel has no strided lists", flush=True)
        return
    p = Pair()
    here, there = p.mine.reshape(BLOCKS, BLOCK), p.theirs.reshape(BLOCKS, BLOCK)

    def lists(*row):
        return (p.a.prep_xfer_dlist(name, np.array([[d[0][0], *row]], np.uint64), "DRAM") for name, d in (("", p.here), ("bob", p.there)))

    local, remote = lists(BLOCK, 0, 2 * BLOCK, BLOCKS // 2)
    here[:] = np.arange(BLOCKS)[:, None]
    numbers = np.arange(BLOCKS // 2, dtype=np.int32)
    handle = p.a.make_prepped_xfer("WRITE", local, numbers, remote, numbers[::-1].copy())
    assert common.finish(p.a, handle, p.a.transfer(handle)) == "DONE"
    assert (there[0::2] == here[0::2][::-1]).all() and (there[1::2] == 2).all()
    fails(bindings.nixlInvalidParamError, p.a.make_prepped_xfer, "WRITE", local, [0], remote, [BLOCKS // 2])
    prepared(p, *lists(BLOCK, 0, BLOCK, BLOCKS))
    too_far = np.array([[p.there[0][0], BLOCK, 0, 2 * BLOCK, BLOCKS // 2 + 1]], np.uint64)
    fails(bindings.nixlNotFoundError, p.a.prep_xfer_dlist, "bob", too_far, "DRAM")


def serialized_descs():
    """A list of blocks that travels as bytes, and "" for this agent's own list."""
    p = Pair()
    text = p.b.get_serialized_descs(p.b.get_xfer_descs(blocks(p.there), "DRAM"))
    prepared(p, p.a.prep_xfer_dlist("", blocks(p.here), "DRAM"), p.a.prep_xfer_dlist("bob", p.a.deserialize_descs(text)))


def query_memory():
    """Registered memory has an empty entry, other memory and files have none."""
    p = Pair()
    start = p.here[0][0]
    asked = [(start, SIZE, 0, ""), (start + BLOCK, BLOCK, 0, ""), (start + SIZE - 1, 2, 0, ""), (1, 1, 0, "")]
    assert p.a.query_memory(asked, BACKEND, "DRAM") == [{}, {}, None, None]
    assert p.a.query_memory([(0, 0, 0, __file__)], BACKEND, "FILE") == [None]
    fails(ValueError, p.a.query_memory, asked, "NONE", "DRAM")


def get_xfer_telemetry():
    p = Pair(capture_telemetry=True)
    handle = common.request(p.a, "WRITE", blocks(p.here)[::2], blocks(p.there)[::2], "bob")
    fails(bindings.nixlNotPostedError, p.a.get_xfer_telemetry, handle)
    last = 0
    for _ in range(3):
        assert common.finish(p.a, handle, p.a.transfer(handle)) == "DONE"
        t = p.a.get_xfer_telemetry(handle)
        assert t.totalBytes == SIZE // 2 and t.descCount == BLOCKS // 2, (t.totalBytes, t.descCount)
        assert 0 <= t.postDuration <= t.xferDuration < 20_000_000, (t.postDuration, t.xferDuration)
        assert t.startTime > last
        last = t.startTime
    off = Pair()
    fails(bindings.nixlNoTelemetryError, off.a.get_xfer_telemetry, off.write())


def get_partial_agent_metadata():
    """The connection first, then one registration after the other. Without the connection, descriptors are refused."""
    p = Pair(load=False)
    first, second = p.b.get_reg_descs([p.there[0] + ("",)], "DRAM"), np.full(SIZE, 3, np.uint8)
    other = [(second.ctypes.data, SIZE, 0)]
    p.b.register_memory([other[0] + ("",)], "DRAM", [BACKEND])

    def known(desc):
        return p.a.check_remote_metadata("bob", p.a.get_xfer_descs(desc, "DRAM"))

    fails(bindings.nixlNotFoundError, p.a.add_remote_agent, p.b.get_partial_agent_metadata(first, False, [BACKEND]))
    p.a.add_remote_agent(p.b.get_partial_agent_metadata(bindings.nixlRegDList(bindings.DRAM_SEG), True, [BACKEND]))
    assert p.a.check_remote_metadata("bob") and not known(p.there)
    p.a.send_notif("bob", b"connected")
    until("the notification", lambda: p.b.get_new_notifs().get("ann") == [b"connected"])
    p.a.add_remote_agent(p.b.get_partial_agent_metadata(first, False, [BACKEND]))
    assert known(p.there) and not known(other)
    p.write()
    fails(bindings.nixlNotFoundError, common.request, p.a, "WRITE", p.here, other, "bob")
    p.a.add_remote_agent(p.b.get_partial_agent_metadata(p.b.get_reg_descs([other[0] + ("",)], "DRAM"), False, [BACKEND]))
    handle = common.request(p.a, "WRITE", p.here, other, "bob")
    assert common.finish(p.a, handle, p.a.transfer(handle)) == "DONE" and (second == 1).all()


def remove_remote_agent():
    """Nothing reaches a removed agent; it may be removed twice, and added again while it lives."""
    p = Pair()
    for n in range(3):
        p.mine[:] = 10 + n
        handle = p.write()
        p.a.remove_remote_agent("bob")
        p.a.remove_remote_agent("bob")
        assert not p.a.check_remote_metadata("bob")
        p.mine[:] = 99
        fails(bindings.nixlNotFoundError, p.a.transfer, handle)
        fails(bindings.nixlNotFoundError, common.request, p.a, "WRITE", p.here, p.there, "bob")
        fails(bindings.nixlNotFoundError, p.a.send_notif, "bob", b"never")
        p.a.release_xfer_handle(handle)
        assert (p.theirs == 10 + n).all()
        p.a.add_remote_agent(p.b.get_agent_metadata())


def prep_mem_view():
    """Views are for GPU kernels of UCX's device API. GORAIL has none: the answer is exact, and the agent goes on."""
    p = Pair()
    if not hasattr(p.a, "prep_mem_view"):
        print("skip: this wheel has no memory views", flush=True)
        return
    for views in (p.a.get_xfer_descs(p.here, "DRAM"), p.a.get_remote_descs([(*p.there[0], "bob")], "DRAM")):
        for backends in (None, [BACKEND]):
            fails(bindings.nixlNotSupportedError, p.a.prep_mem_view, views, backends=backends)
    p.write()


def no_etcd():
    """Without a server's address the calls are refused. With the address of a dead server nothing is found, and transfers work."""
    p = Pair()
    for call, args in ((p.a.send_local_metadata, ()), (p.a.fetch_remote_metadata, ("bob",)), (p.a.invalidate_local_metadata, ())):
        fails(bindings.nixlInvalidParamError, call, *args)
    p.write()


def dead_etcd():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ["NIXL_ETCD_ENDPOINTS"] = f"http://127.0.0.1:{s.getsockname()[1]}"  # bound and not listening: refused
        p = Pair()
        p.a.send_local_metadata()
        p.a.fetch_remote_metadata("eve")
        p.write()
        assert not p.a.check_remote_metadata("eve")
    print("\nok", flush=True)
    os._exit(0)  # the end of an agent waits for the server, whatever the backend


def listening(name):
    for _ in range(20):  # another process may take the port meanwhile
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        try:
            return api.nixl_agent(name, api.nixl_agent_config(enable_listen_thread=True, listen_port=port, backends=[BACKEND])), port
        except RuntimeError as e:
            print(port, e, flush=True)
    sys.exit("no free port")


def listener():
    """Metadata through NIXL's own listening thread: fetched, then taken back."""
    (a, port_a), (b, port_b) = listening("ann"), listening("bob")
    (_, here), (theirs, there) = common.buffer(a, SIZE, 1), common.buffer(b, SIZE, 2)
    a.fetch_remote_metadata("bob", "127.0.0.1", port_b)
    until("bob's metadata", lambda: a.check_remote_metadata("bob", a.get_xfer_descs(there, "DRAM")))
    handle = common.request(a, "WRITE", here, there, "bob")
    assert common.finish(a, handle, a.transfer(handle)) == "DONE" and (theirs == 1).all()
    b.invalidate_local_metadata("127.0.0.1", port_a)
    until("the end of bob's metadata", lambda: not a.check_remote_metadata("bob"))


def make_connection():
    """Connects ahead; notifications of each kind of asking arrive once."""
    p = Pair()
    p.a.make_connection("bob", [BACKEND])
    fails(bindings.nixlNotFoundError, p.a.make_connection, "nobody")
    p.a.send_notif("bob", b"tag: 1")
    until("by tag", lambda: p.b.check_remote_xfer_done("ann", b"tag"))
    assert not p.b.check_remote_xfer_done("ann", b"tag")
    p.a.send_notif("bob", b"2")
    until("kept", lambda: p.b.update_notifs().get("ann") == [b"2"])
    p.write()


def sync_mode():
    if not hasattr(api, "nixl_thread_sync_t"):
        print("skip: this wheel's agents have no sync mode", flush=True)
        return
    for mode in api.nixl_thread_sync_t:
        Pair(sync_mode=mode).write()


globals()[sys.argv[2]]()
print("\nok", flush=True)
