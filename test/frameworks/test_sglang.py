"""SGLang's NIXL backend for disaggregation over GORAIL: its managers, sender, receiver and bootstrap server in two processes."""

import random

import pytest
from peer import Peer, fabrics, free_port, moved

PAGES = 64

# SGLang reaches its peers under this address. A starved host answers late, and is no dead one.
BASE = {"SGLANG_HOST_IP": "127.0.0.1", "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1000"}
BY_NAME = {**BASE, "SGLANG_DISAGGREGATION_NIXL_BACKEND": "GORAIL"}

# How the backend is chosen, and the fabric that carries the bytes.
CASES = {
    "parameters": (BY_NAME | {"SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": '{"provider":"tcp","xfer_timeout":"15s"}'}, None, "tcp"),
    "environment": (BY_NAME | {"GORAIL_PROVIDER": "tcp"}, None, "tcp"),
    "shared memory": (BY_NAME, None, "sm"),
    # SGLang's default is UCX, for which it adds the parameter num_threads.
    "alias": (BASE | {"GORAIL_PROVIDER": "tcp"}, "UCX", "tcp"),
}


def pages(seed: int, count: int) -> "list[list[int]]":
    """Page numbers of a room at prefill and at decode."""
    rng = random.Random(seed)
    return [rng.sample(range(PAGES), count) for _ in range(2)]


# How the states of Mamba layers and of sliding windows go: under the name UCX SGLang prepares lists of them once for each peer.
STATES = {
    "generic": (BY_NAME | {"GORAIL_PROVIDER": "tcp"}, None, []),
    "prepared": (BASE | {"GORAIL_PROVIDER": "tcp"}, "UCX", [2]),
    "prepared shared memory": (BASE, "UCX", [2]),
}


def pair(start, options: "dict[str, str]", alias: "str | None" = None, way: str = "none") -> "tuple[Peer, Peer]":
    port = str(free_port())
    both = [start(name, "sglang_peer.py", [name, port, way], options, alias=alias) for name in ("prefill", "decode")]
    return both[0].ready(), both[1].ready()


class Room:
    """A request: its number, the pages of both sides, and the items of each state of both sides."""

    def __init__(self, number: int, theirs: "list[int]", mine: "list[int]", items: "tuple[list[list[int]], list[list[int]]]" = ([], [])):
        self.number, self.theirs, self.mine, self.items = number, theirs, mine, items

    def transfer(self, prefill: Peer, decode: Peer, chunk: int = 6) -> None:
        prefill.call("admit", self.number, len(self.theirs))
        decode.call("ask", self.number, self.mine, self.items[1])
        assert prefill.call("bootstrap", self.number) == "WaitingForInput"
        assert prefill.call("send", self.number, self.theirs, chunk, self.items[0]) == "Success"
        assert decode.call("receive", self.number) == "Success"

    def listed(self) -> "list[object]":
        return [self.number, self.theirs, self.mine, *self.items]


@pytest.mark.parametrize("case", CASES)
def test_bytes(start, case: str) -> None:
    """Every byte arrives in the pages that decode named, no other byte changes, and the plugin's counters say so."""
    options, alias, fabric = CASES[case]
    prefill, decode = pair(start, options, alias)
    rooms = []
    for room in range(3):
        # Decode's pages of other rooms are others': a page is written once.
        theirs, mine = pages(room, 15)[0], list(range(room * 20, room * 20 + 15))
        random.Random(room).shuffle(mine)
        rooms.append(Room(room, theirs, mine))
        rooms[-1].transfer(prefill, decode)
    came = decode.call("check", [r.listed() for r in rooms])
    counted = prefill.counters()
    assert moved(counted, "bytes_written") == came > 0
    assert fabrics(counted, "bytes_written") == {fabric}
    assert moved(decode.counters(), "bytes_written") == 0


@pytest.mark.parametrize("case", STATES)
def test_states(start, case: str) -> None:
    """States go with the last chunk of a room. A killed decode process is replaced, and gets states, too."""
    options, alias, plans = STATES[case]
    way = case.split()[0]
    port = str(free_port())
    prefill, decode = (start(name, "sglang_peer.py", [name, port, way], options, alias=alias) for name in ("prefill", "decode"))
    prefill.ready(), decode.ready()
    moved_bytes = 0
    for round in range(2):
        rooms = []
        for i in range(3):
            number, seed = round * 3 + i, random.Random(round * 3 + i)
            # A room has one item of Mamba's state, and pages of its own of the window.
            items = tuple([[seed.randrange(20 * i, 20 * i + 20)], seed.sample(range(20 * i, 20 * i + 20), 4)] for _ in range(2))
            rooms.append(Room(number, pages(number, 15)[0], list(range(i * 20, i * 20 + 15)), items))
            rooms[-1].transfer(prefill, decode)
        moved_bytes += decode.call("check", [r.listed() for r in rooms])  # type: ignore[operator]
        if round == 0:
            assert prefill.call("plans") == plans
            decode.kill()
            decode = start("decode2", "sglang_peer.py", ["decode", port, way], options, alias=alias).ready()
    counted = prefill.counters()
    assert moved(counted, "bytes_written") == moved_bytes
    assert fabrics(counted, "bytes_written") == {"sm" if "shared" in case else "tcp"}


def test_wrong_parameter(start) -> None:
    """SGLang's second variable reaches the plugin: a wrong value ends the start."""
    options = BY_NAME | {"SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": '{"xfer_timeout":"soon"}'}
    log = start("decode", "sglang_peer.py", ["decode", str(free_port()), "none"], options).failure()
    assert "create_backend" in log and "code=GR-1004" in log and "bad option: xfer_timeout" in log, log


def test_decode_killed(start) -> None:
    """A decode process dies before its room is sent: the room fails at prefill, and another decode process is served."""
    options = BY_NAME | {"GORAIL_PROVIDER": "tcp"}
    port = str(free_port())
    prefill = start("prefill", "sglang_peer.py", ["prefill", port, "none"], options)
    dead = start("decode", "sglang_peer.py", ["decode", port, "none"], options)
    prefill.ready(), dead.ready()
    Room(0, *pages(10, 15)).transfer(prefill, dead)
    theirs, mine = pages(11, 15)
    prefill.call("admit", 1, len(theirs))
    dead.call("ask", 1, mine, [])
    assert prefill.call("bootstrap", 1) == "WaitingForInput"
    dead.kill()
    assert prefill.call("send", 1, theirs, 6, []) == "Failed"

    other = start("decode2", "sglang_peer.py", ["decode", port, "none"], options).ready()
    last = Room(2, *pages(12, 15))
    last.transfer(prefill, other)
    assert other.call("check", [last.listed()]) > 0
