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


def pair(start, options: "dict[str, str]", alias: "str | None" = None) -> "tuple[Peer, Peer]":
    port = str(free_port())
    both = [start(name, "sglang_peer.py", [name, port], options, alias=alias) for name in ("prefill", "decode")]
    return both[0].ready(), both[1].ready()


def transfer(prefill: Peer, decode: Peer, room: int, theirs: "list[int]", mine: "list[int]", chunk: int) -> None:
    prefill.call("admit", room, len(theirs))
    decode.call("ask", room, mine)
    assert prefill.call("bootstrap", room) == "WaitingForInput"
    assert prefill.call("send", room, theirs, chunk) == "Success"
    assert decode.call("receive", room) == "Success"


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
        transfer(prefill, decode, room, theirs, mine, chunk=6)
        rooms.append((room, theirs, mine))
    came = decode.call("check", rooms)
    counted = prefill.counters()
    assert moved(counted, "bytes_written") == came > 0
    assert fabrics(counted, "bytes_written") == {fabric}
    assert moved(decode.counters(), "bytes_written") == 0


def test_wrong_parameter(start) -> None:
    """SGLang's second variable reaches the plugin: a wrong value ends the start."""
    options = BY_NAME | {"SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": '{"xfer_timeout":"soon"}'}
    log = start("decode", "sglang_peer.py", ["decode", str(free_port())], options).failure()
    assert "create_backend" in log and "code=GR-1004" in log and "bad option: xfer_timeout" in log, log


def test_decode_killed(start) -> None:
    """A decode process dies before its room is sent: the room fails at prefill, and another decode process is served."""
    options = BY_NAME | {"GORAIL_PROVIDER": "tcp"}
    port = str(free_port())
    prefill = start("prefill", "sglang_peer.py", ["prefill", port], options)
    dead = start("decode", "sglang_peer.py", ["decode", port], options)
    prefill.ready(), dead.ready()
    transfer(prefill, dead, 0, *pages(10, 15), chunk=6)
    theirs, mine = pages(11, 15)
    prefill.call("admit", 1, len(theirs))
    dead.call("ask", 1, mine)
    assert prefill.call("bootstrap", 1) == "WaitingForInput"
    dead.kill()
    assert prefill.call("send", 1, theirs, 6) == "Failed"

    other = start("decode2", "sglang_peer.py", ["decode", port], options).ready()
    theirs, mine = pages(12, 15)
    transfer(prefill, other, 2, theirs, mine, chunk=6)
    assert other.call("check", [(2, theirs, mine)]) > 0
