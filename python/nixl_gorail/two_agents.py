"""Two NIXL agents in two processes move 64 MiB both ways and a notification.

    python -m nixl_gorail.two_agents [--backend GORAIL] [--mib 64] [--rounds 20]

On two hosts, in a trusted network:

    ... two_agents --listen 0.0.0.0:7777          # the target
    ... two_agents --connect target-host:7777     # the initiator

The target only waits. The initiator moves all bytes: it writes to the target's memory and reads from it.
"""

import argparse
import contextlib
import json
import multiprocessing as mp
import multiprocessing.connection
import os
import tempfile
import time

import numpy as np

from nixl_gorail import nixl_api
from nixl_gorail.examples import find_gorail

TIMEOUT = 30  # seconds, for every wait


def wait(what, done):
    """Calls done() until it returns a true value."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        if result := done():
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(what)


def receive(pipe):
    if not pipe.poll(TIMEOUT):
        raise TimeoutError("the other process is silent")
    return pipe.recv()


def expect(pipe, word):
    if (got := receive(pipe)) != word:
        raise RuntimeError(f"expected {word!r} of the other process, got {got!r}")


def new_agent(name, backend, size, pattern):
    """An agent with one registered buffer."""
    api = nixl_api()
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=[backend]))
    buffer = np.full(size, pattern, dtype=np.uint8)
    region = (buffer.ctypes.data, buffer.nbytes, 0)
    memory = agent.register_memory([(*region, "")], "DRAM", backends=[backend])
    return agent, buffer, region, memory


def target(pipe, backend, size):
    agent, buffer, region, memory = new_agent("target", backend, size, 0x22)
    pipe.send((agent.get_agent_metadata(), region))

    def arrived():
        return agent.get_new_notifs().get("initiator")

    # The notification arrives after the data, so the data is complete.
    message = wait("the notification", arrived)
    assert message == [b"written"], message
    assert (buffer == 0x11).all(), "the buffer is not what the initiator wrote"

    buffer[:] = 0x33
    pipe.send("filled")
    expect(pipe, "read")
    agent.deregister_memory(memory, backends=[backend])
    pipe.send("all well")


def move(agent, handle, notification=b""):
    """Posts a transfer and waits for its end. Returns the seconds it took."""
    start = time.perf_counter()
    state = agent.transfer(handle, notification)

    def ended():
        nonlocal state
        if state == "PROC":
            state = agent.check_xfer_state(handle)
        return state != "PROC"

    wait("the transfer", ended)
    if state != "DONE":
        raise RuntimeError(f"transfer ended as {state}")
    return time.perf_counter() - start


def initiator(pipe, backend, size, rounds):
    agent, buffer, region, memory = new_agent("initiator", backend, size, 0x11)
    metadata, remote_region = receive(pipe)
    peer = agent.add_remote_agent(metadata)
    if isinstance(peer, bytes):
        peer = peer.decode()
    local = agent.get_xfer_descs([region], "DRAM")
    remote = agent.get_xfer_descs([remote_region], "DRAM")

    def measure(operation, notification=b""):
        handle = agent.initialize_xfer(operation, local, remote, peer, backends=[backend])
        move(agent, handle)  # warmup, which also connects
        best = min(move(agent, handle) for _ in range(rounds))
        if notification:
            move(agent, handle, notification)  # the notification arrives after the data
        agent.release_xfer_handle(handle)
        print(f"{operation:5} {size >> 20} MiB: {size / best / 1e9:.2f} GB/s, best of {rounds}")

    measure("WRITE", b"written")

    # The target has checked the written bytes and refilled its buffer.
    expect(pipe, "filled")
    measure("READ")
    assert (buffer == 0x33).all(), "the buffer is not what the target holds"
    pipe.send("read")

    agent.remove_remote_agent(peer)
    agent.deregister_memory(memory, backends=[backend])
    expect(pipe, "all well")


@contextlib.contextmanager
def counted(backend):
    """Says which rails have carried the bytes of this process's agent, once the agent has ended. Its counters say it (stats_file)."""
    if backend != "GORAIL" or "GORAIL_STATS_FILE" in os.environ:
        yield
        return
    with tempfile.NamedTemporaryFile() as file:
        os.environ["GORAIL_STATS_FILE"] = file.name
        try:
            yield
        finally:
            del os.environ["GORAIL_STATS_FILE"]
        with open(file.name, encoding="utf-8") as written:  # not `file`: the engine has put another in its place
            text = written.read()
    if not text:
        return  # its log says why it could not write
    stats = json.loads(text)
    carried = {rail["name"]: rail["bytes_written"] + rail["bytes_read"] for rail in stats["rails"]}
    print("path: " + ", ".join(f"{name} ({size >> 20} MiB)" for name, size in carried.items() if size))


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="GORAIL")
    parser.add_argument("--mib", type=int, default=64, help="size of the buffers")
    parser.add_argument("--rounds", type=int, default=20, help="transfers to time, each way")
    parser.add_argument("--listen", metavar="HOST:PORT", type=address, help="run as the target, and wait there for the initiator")
    parser.add_argument("--connect", metavar="HOST:PORT", type=address, help="run as the initiator, for the target that waits there")
    args = parser.parse_args()
    size = args.mib << 20
    find_gorail(args.backend)
    key = b"two agents"
    if args.listen:
        with mp.connection.Listener(args.listen, authkey=key) as listener, listener.accept() as pipe:
            target(pipe, args.backend, size)
        return
    if args.connect:
        try:
            pipe = mp.connection.Client(args.connect, authkey=key)
        except OSError as err:
            host, port = args.connect
            raise SystemExit(f"{host}:{port}: {err.strerror or err}. Is two_agents --listen running there?") from None
        with counted(args.backend), pipe:
            initiator(pipe, args.backend, size, args.rounds)
        print(f"{args.backend}: WRITE, READ and notification verified")
        return

    # spawn: a forked child could not use the library that its parent has loaded.
    ours, theirs = mp.get_context("spawn").Pipe()
    other = mp.get_context("spawn").Process(target=target, args=(theirs, args.backend, size))
    other.start()
    try:
        with counted(args.backend):
            initiator(ours, args.backend, size, args.rounds)
        other.join(TIMEOUT)
    finally:
        if other.is_alive():
            other.kill()
            other.join()
    print(f"{args.backend}: WRITE, READ and notification verified")


if __name__ == "__main__":
    main()
