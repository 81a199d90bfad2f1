"""Programs that move weights and tensors under the name UCX: ModelExpress, verl's ring, and Ray's direct transport."""

import tempfile
from pathlib import Path

import pytest
from peer import Peer, fabrics, free_port, moved

ALIAS = "UCX"  # none of them takes the name GORAIL
TCP = {"GORAIL_PROVIDER": "tcp"}
FABRICS = {"tcp": TCP, "sm": {}}


@pytest.mark.parametrize("fabric", FABRICS)
def test_modelexpress(start, fabric: str) -> None:
    """A target loads all weights and an artifact of a source. A killed source is replaced under another name."""

    def manager(name: str) -> "tuple[Peer, int]":
        port = free_port()
        return start(name, "modelexpress_peer.py", [name, str(port)], FABRICS[fabric], alias=ALIAS), port

    (source, port), (target, _) = manager("source"), manager("target")
    source.ready(), target.ready()
    came = 0
    for version in (1, 2):
        source.call("fill", version)
        tensors, artifact = source.call("describe")
        came += target.call("load", "source", port, tensors, artifact, version)  # type: ignore[operator]
    source.kill()
    assert target.call("fails", "source", artifact) != ""

    other, port = manager("source2")
    other.ready().call("fill", 3)
    came += target.call("load", "source2", port, *other.call("describe"), 3)  # type: ignore[operator]
    counted = target.counters()
    assert moved(counted, "bytes_read") == came
    assert fabrics(counted, "bytes_read") == {fabric}


def ring(start, ranks: int, options: "dict[str, str]", tag: str = "") -> "list[Peer]":
    peers = [start(f"rank{i}{tag}", "verl_peer.py", [str(i)], options, alias=ALIAS) for i in range(ranks)]
    metadata = [p.ready().call("describe") for p in peers]
    for i, p in enumerate(peers):
        p.call("join", metadata[i - 1] if i else "", metadata[i + 1] if i + 1 < ranks else "", ranks)
    return peers


def updated(peers: "list[Peer]", version: int) -> int:
    """The trainer sends a version, and all others receive it. Returns the bytes that came to each."""
    for p in peers:
        p.post("update", version)
    came = [p.result() for p in peers]
    assert came[0] == 0 and len({*came[1:]}) == 1
    return came[1]  # type: ignore[return-value]


@pytest.mark.parametrize("fabric", FABRICS)
def test_verl(start, fabric: str) -> None:
    """A trainer's weights come to two rollout workers by verl's ring. A killed rank ends the ring: a new one is served."""
    peers = ring(start, 3, FABRICS[fabric])
    assert updated(peers, 1) > 0
    updated(peers, 2)
    counted = peers[2].counters()
    assert moved(counted, "bytes_read") > 0
    assert fabrics(counted, "bytes_read") == {fabric}
    peers[1].kill()
    updated(ring(start, 3, FABRICS[fabric], "again"), 3)


@pytest.mark.parametrize("fabric", FABRICS)
def test_ray(start, tmp_path: Path, fabric: str) -> None:
    """An actor's tensors come to another actor. A killed actor is an error at the other one, and a new one is served from."""
    files = {"GORAIL_STATS_FILE": str(tmp_path / "%p.json"), "GORAIL_STATS_INTERVAL": "100ms", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: Ray's sockets are in it
        driver = start("driver", "ray_peer.py", [folder], FABRICS[fabric] | files, alias=ALIAS).ready()
        driver.call("spawn", "source")
        driver.stats = tmp_path / f"{driver.call('spawn', 'target')}.json"
        came = sum(driver.call("move", "source", "target", version) for version in (1, 2))  # type: ignore[misc]
        assert driver.call("killed", "source", "target", 3) != ""
        driver.call("spawn", "source2")
        came += driver.call("move", "source2", "target", 4)  # type: ignore[operator]
        counted = driver.counters()
        driver.kill()
    assert moved(counted, "bytes_read") == came
    assert fabrics(counted, "bytes_read") == {fabric}
