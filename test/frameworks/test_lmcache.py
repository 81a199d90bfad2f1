"""LMCache over GORAIL: its PD backend and its transfer channel, each in two processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from peer import Peer, fabrics, free_port, moved

CHUNK_BYTES = 512 << 10

# LMCache hands the backend no parameters: GORAIL's options are in the environment.
CASES = {"tcp": ({"GORAIL_PROVIDER": "tcp"}, "GORAIL"), "sm": ({}, "GORAIL"), "alias": ({"GORAIL_PROVIDER": "tcp"}, "UCX")}


def config(folder: Path, role: str, backend: str, ports: "list[int]") -> str:
    """A configuration file as LMCache's users write one. A reader of decode's cache has the role both."""
    init, alloc, query = ports
    path = folder / f"{role}.yaml"
    path.write_text(f"""\
local_cpu: false
chunk_size: 64
enable_pd: true
transfer_channel: "nixl"
pd_role: "{role}"
pd_peer_host: "127.0.0.1"
pd_peer_init_port: [{init}]
pd_peer_alloc_port: [{alloc}]
pd_peer_query_port: [{query}]
pd_skip_proxy_notification: true
pd_buffer_size: {16 << 20}
pd_buffer_device: "cpu"
nixl_backends: [{backend}]
""")
    return str(path)


def pair(start, folder: Path, case: str) -> "tuple[Peer, Peer, list[int]]":
    options, backend = CASES[case]
    alias = None if backend == "GORAIL" else backend
    ports = [free_port() for _ in range(3)]
    both = [
        start(name, "lmcache_peer.py", [config(folder, role, backend, ports)], options, alias=alias)
        for name, role in (("prefill", "both"), ("decode", "receiver"))
    ]
    return both[0].ready(), both[1].ready(), ports


@pytest.mark.parametrize("case", CASES)
def test_pd(start, tmp_path: Path, case: str) -> None:
    """Prefill writes chunks to decode, and reads them back from decode's cache. The plugin's counters have every byte."""
    prefill, decode, ports = pair(start, tmp_path, case)
    assert prefill.call("put", [1, 2, 3, 4, 5], ports) == 5
    assert prefill.call("put", [4, 5, 6], ports) == 1  # the others were there
    assert decode.call("check", [1, 2, 3, 4, 5, 6]) == 6 * CHUNK_BYTES
    assert prefill.call("read", [2, 6, 5], ports) == 3
    assert prefill.call("read", [7], ports) == 0  # decode does not have it
    counted = prefill.counters()
    assert moved(counted, "bytes_written") == 6 * CHUNK_BYTES
    assert moved(counted, "bytes_read") == 3 * CHUNK_BYTES
    fabric = "sm" if case == "sm" else "tcp"
    assert fabrics(counted, "bytes_written") == fabrics(counted, "bytes_read") == {fabric}


@pytest.mark.parametrize("case", CASES)
def test_channel(start, case: str) -> None:
    """The transfer channel of LMCache's servers: one side reads objects of the other."""
    options, backend = CASES[case]
    alias = None if backend == "GORAIL" else backend
    ports = [str(free_port()) for _ in range(2)]
    reader = start("reader", "lmcache_channel_peer.py", [backend, *ports], options, alias=alias)
    owner = start("owner", "lmcache_channel_peer.py", [backend, *reversed(ports)], options, alias=alias)
    reader.ready(), owner.ready()
    owner.call("fill", 3)
    objects = [(0, 40, 65536), (7, 1, 200_000), (20, 10, 100), (30, 50, 10 * 65536)]
    came = reader.call("read", 3, objects)
    counted = reader.counters()
    assert moved(counted, "bytes_read") == came == 16 * 65536
    assert fabrics(counted, "bytes_read") == {"sm" if case == "sm" else "tcp"}


def test_channel_killed(start) -> None:
    """The owner of the memory dies: a READ ends with an error."""
    ports = [str(free_port()) for _ in range(2)]
    options = {"GORAIL_PROVIDER": "tcp"}
    reader = start("reader", "lmcache_channel_peer.py", ["GORAIL", *ports], options)
    owner = start("owner", "lmcache_channel_peer.py", ["GORAIL", *reversed(ports)], options)
    reader.ready(), owner.ready()
    owner.call("fill", 4)
    assert reader.call("read", 4, [(0, 0, 65536)]) == 65536
    owner.kill()
    assert reader.call("read", 4, [(1, 1, 65536)]) == -1


def test_storage_refuses() -> None:
    """LMCache's storage takes a fixed list of backends: GORAIL and UCX are not among them."""
    program = (
        "from lmcache.v1.storage_backend.nixl_storage_backend import NixlStorageConfig as c\n"
        "print([b for b in ('GORAIL', 'UCX', 'POSIX', 'GDS') if any(c.validate_nixl_backend(b, d) for d in ('cpu', 'cuda'))])"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "['POSIX', 'GDS']", done.stdout
