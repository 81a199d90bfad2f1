"""Metadata by a store that all agents see: etcd, or torch's TCPStore. What the agent does with us in each case.

argv: PLUGIN KIND SCENARIO. KIND is etcd or tcpstore; STORE names its program: etcd, or a Python that has torch.
As peer (argv: PLUGIN KIND peer NAME) it does what the lines of standard input say.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import common
from common import BACKEND

KIND, SCENARIO = sys.argv[2:4]
SIZE = 1 << 20
LIMIT = 60  # seconds for what takes milliseconds
ENDPOINT = {"etcd": "NIXL_ETCD_ENDPOINTS", "tcpstore": "NIXL_TCPSTORE_ENDPOINT"}[KIND]
TCPSTORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
sys.stdin.read()
"""


kept = []  # agents: their end waits for the store, whatever the backend, and for ever if it has stopped their thread


class Store:
    """A store's server. It may die and come back at the same address: etcd with what it had, a TCPStore empty."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as s, socket.create_server(("127.0.0.1", 0)) as other:
            self.port, self.peer_port = s.getsockname()[1], other.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")  # etcd syncs each change, and others may keep the disk busy
        os.environ[ENDPOINT] = ("http://" if KIND == "etcd" else "") + f"127.0.0.1:{self.port}"
        self.start()

    def start(self):
        program = os.environ["STORE"]
        if KIND == "etcd":
            at, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
            args = ["--data-dir", self.folder.name, "--listen-client-urls", at, "--advertise-client-urls", at]
            args += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers]
            with open(os.path.join(self.folder.name, "log"), "ab") as log:
                self.server = subprocess.Popen([program, *args], stdout=log, stderr=log)
        else:
            self.server = subprocess.Popen([program, "-c", TCPSTORE, str(self.port)], stdin=subprocess.PIPE)
        until("the store", self.answers)

    def answers(self):
        """A client that asks etcd earlier may stop for ever, see fetch_without_store: it listens before it serves."""
        try:
            if KIND == "etcd":
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1) as reply:
                    return json.load(reply)["health"] == "true"
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:  # URLError is one
            assert self.server.poll() is None, "the store's server has ended"
            return False

    def kill(self):
        common.kill(self.server)


class Peer:
    """An agent in a process of its own, with two buffers."""

    def __init__(self, name):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), BACKEND, KIND, "peer", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.descs = [[(int(addr), SIZE, 0)] for addr in self.answer().split()]

    def answer(self):
        for line in self.process.stdout:  # NIXL logs to the same stream
            if line.startswith(b"@peer "):
                return line[len(b"@peer ") :].decode().strip()
        sys.exit("the peer has ended")

    def do(self, what):
        self.process.stdin.write(what.encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def kill(self):
        common.kill(self.process)


def peer(name):
    a = common.agent(name)
    bufs = [common.buffer(a, SIZE, 2) for _ in range(2)]
    print("\n@peer", *(mem.ctypes.data for mem, _ in bufs), flush=True)
    for line in sys.stdin:
        what, *args = line.split()
        answer = "done"
        if what == "publish":
            a.send_local_metadata()
        elif what == "part":  # one buffer, and how to connect
            descs = a.get_reg_descs([(*bufs[int(args[0])][1][0], "")], "DRAM")
            a.send_partial_agent_metadata(descs, True, [BACKEND], "", 0, args[1])
        elif what == "invalidate":
            a.invalidate_local_metadata()
        elif what == "fetch":
            a.fetch_remote_metadata(args[0])
            answer = str(within(1, lambda: a.check_remote_metadata(args[0])))
        elif what == "metadata":
            answer = a.get_agent_metadata().hex()
        elif what == "holds":
            answer = str(all((mem == int(args[0])).all() for mem, _ in bufs[: int(args[1])]))
        print("\n@peer", answer, flush=True)
    os._exit(0)


def within(seconds, done):
    """Returns whether something came true in time."""
    end = time.monotonic() + seconds
    while not (true := done()) and time.monotonic() < end:
        time.sleep(0.005)
    return true


def until(what, done):
    assert within(LIMIT, done), f"{what}: not within {LIMIT} s"


class Ann:
    """The agent that fetches, and writes to its peers."""

    def __init__(self, name="ann"):
        self.a = common.agent(name)
        kept.append(self.a)
        self.mem, self.here = common.buffer(self.a, SIZE, 1)

    def knows(self, p, buf=0):
        return self.a.check_remote_metadata(p.name, self.a.get_xfer_descs(p.descs[buf], "DRAM"))

    def fetch(self, p, label="", buf=0):
        """Asks again, as an application must: a fetch that waits for an entry ends when it sees the removal of the last one."""

        def found():
            self.a.fetch_remote_metadata(p.name, label=label)
            return within(1, lambda: self.knows(p, buf))

        until(f"{p.name}'s metadata", found)

    def request(self, p, value=1, buf=0):
        self.mem[:] = value
        return common.request(self.a, "WRITE", self.here, p.descs[buf], p.name)

    def write(self, p, value, buf=0):
        handle = self.request(p, value, buf)
        state = common.finish(self.a, handle, self.a.transfer(handle))
        assert state == "DONE", state
        self.a.release_xfer_handle(handle)

    def reaches(self, p, value):
        self.write(p, value)
        assert p.do(f"holds {value} 1") == "True"


def fails(call, *args):
    """Returns the name of NIXL's error; "": none."""
    try:
        call(*args)
    except Exception as e:
        return type(e).__name__
    return ""


def add_and_remove():
    """A peer is added, removed, and added again. With etcd its removal reaches those that fetched it; a TCPStore tells nobody."""
    store, bob, ann = Store(), Peer("bob"), Ann()
    ann.a.fetch_remote_metadata("bob")  # before there is anything: the agent waits for it, five seconds (etcd) or thirty
    bob.do("publish")
    until("bob's metadata", lambda: ann.knows(bob))
    ann.reaches(bob, 3)
    held = ann.request(bob, 4)
    bob.do("invalidate")
    if KIND == "etcd":
        until("the end of bob's metadata", lambda: not ann.knows(bob))
        assert fails(ann.a.transfer, held) == "nixlNotFoundError"
        assert fails(ann.request, bob) == "nixlNotFoundError"
    else:
        assert common.finish(ann.a, held, ann.a.transfer(held)) == "DONE"
    bob.do("publish")
    ann.fetch(bob)
    ann.reaches(bob, 5)
    store.kill()


def partial():
    """Parts of a peer's metadata come under labels, one after the other."""
    store, bob, ann = Store(), Peer("bob"), Ann()
    for buf, label in enumerate(("weights", "kv")):
        bob.do(f"part {buf} {label}")
        ann.fetch(bob, label, buf)
        assert ann.knows(bob, 0) and ann.knows(bob, 1) == (buf == 1)
        ann.write(bob, 7, buf)
    assert bob.do("holds 7 2") == "True"
    store.kill()


def store_dies():
    """Transfers go on without the store, calls return, and after its return others are found."""
    store, bob, ann = Store(), Peer("bob"), Ann()
    bob.do("publish")
    ann.fetch(bob)
    store.kill()
    for value in range(10, 20):
        ann.reaches(bob, value)
    soon(ann.a.send_local_metadata)
    ann.reaches(bob, 20)
    store.start()
    ann.reaches(bob, 21)
    carl = Peer("carl")

    def published():  # only then is etcd's client in order again: a fetch before that stops it, see fetch_without_store
        ann.a.send_local_metadata()
        return carl.do("fetch ann") == "True"

    until("ann's entry after the store's return", published)
    carl.do("publish")
    ann.fetch(carl)
    ann.reaches(carl, 22)
    ann.reaches(bob, 23)
    store.kill()


def fetch_without_store():
    """With etcd a fetch while the store is away stops the agent's thread for metadata for ever, with any backend. Calls return, transfers go on, and metadata
    that comes another way is taken."""
    store, bob, ann = Store(), Peer("bob"), Ann()
    bob.do("publish")
    ann.fetch(bob)
    store.kill()
    soon(ann.a.fetch_remote_metadata, "carl")
    ann.reaches(bob, 10)
    store.start()
    carl = Peer("carl")
    carl.do("publish")
    soon(ann.a.fetch_remote_metadata, "carl")
    if KIND == "etcd":
        ann.a.add_remote_agent(bytes.fromhex(carl.do("metadata")))
    until("carl's metadata", lambda: ann.knows(carl))
    ann.reaches(carl, 11)
    ann.reaches(bob, 12)
    store.kill()


def soon(call, *args):
    start = time.monotonic()
    call(*args)
    assert time.monotonic() - start < 5


def stale():
    """A crashed run left its entries. Who fetches them gets an error soon. A fetch of the new run's does not replace them: the agent forgets the peer first."""
    store, bob, early = Store(), Peer("bob"), Ann()
    bob.do("publish")
    early.fetch(bob)
    early.reaches(bob, 3)
    bob.kill()
    late = Ann("late")
    late.fetch(bob)
    for who in (early, late):
        start = time.monotonic()
        error = fails(who.write, bob, 4)
        assert error == "nixlRemoteDisconnectError" and time.monotonic() - start < 10, (error, time.monotonic() - start)
    bob = Peer("bob")
    bob.do("publish")
    published = Ann("published")
    until("the new run's entry", lambda: reached(published, bob, 5))
    carl = Peer("carl")
    carl.do("publish")
    for who in (early, late):
        who.a.fetch_remote_metadata("bob")
        who.fetch(carl)  # the agent fetches one after the other, and says nothing of what it refuses
        assert not who.knows(bob)
        who.a.remove_remote_agent("bob")
        who.fetch(bob)
        who.reaches(bob, 6)
    store.kill()


def reached(who, p, value):
    """A fetch may still bring the old entry."""
    who.a.fetch_remote_metadata(p.name)
    if not within(1, lambda: who.knows(p)):
        fails(who.a.remove_remote_agent, p.name)
        return False
    who.reaches(p, value)
    return True


if SCENARIO == "peer":
    peer(sys.argv[4])
globals()[SCENARIO]()
print("\nok", flush=True)
os._exit(0)  # see kept
