"""Programs that move weights and tensors under the name UCX: ModelExpress, verl's ring, and Ray's direct transport."""

import json
import tempfile
import time

import pytest
from peer import LIMIT, Peer, fabrics, free_port, moved

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
def test_ray(start, fabric: str) -> None:
    """An actor's tensors come to another actor, also after others were freed. A killed actor is an error, and a new one serves."""

    def actor(name: str) -> Peer:
        return start(name, "ray_peer.py", [name], FABRICS[fabric], alias=ALIAS)

    source, target = actor("source"), actor("target")
    source.ready(), target.ready()
    came = target.call("take", "a", source.call("make", "a", 1), 1)
    source.call("free", "a")
    came += target.call("take", "b", source.call("make", "b", 2), 2)  # type: ignore[operator]
    late = source.call("make", "c", 3)
    source.kill()
    assert target.call("fails", "c", late) == "RayDirectTransportError"

    other = actor("source2").ready()
    came += target.call("take", "d", other.call("make", "d", 4), 4)
    counted = target.counters()
    assert moved(counted, "bytes_read") == came
    assert fabrics(counted, "bytes_read") == {fabric}


@pytest.mark.parametrize("fabric", FABRICS)
def test_ray_cluster(start, tmp_path, fabric: str) -> None:
    """Two actors of a cluster: tensors come from one to the other. A killed actor is an error, and a new one serves."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        driver = start("driver", "ray_cluster_peer.py", [folder], FABRICS[fabric] | {"GORAIL_STATS_FILE": str(tmp_path / "actor-%p.json")}, alias=ALIAS).ready()
        size = driver.call("move", 1, 1)
        assert size > 0
        assert driver.call("move", 2, 2) == size
        assert driver.call("move", 3, 4) == 0, "other tensors are not the same"
        assert driver.call("killed", 5) != ""
        assert driver.call("move", 6, 6) == size

        def read() -> "list[dict[str, object]]":
            counted = [json.loads(f.read_text()) for f in tmp_path.glob("actor-*.json")]
            return [c for c in counted if moved(c, "bytes_read")]

        deadline = time.monotonic() + LIMIT
        while sum(moved(c, "bytes_read") for c in read()) < 4 * size:  # the plugin writes them each GORAIL_STATS_INTERVAL
            assert time.monotonic() < deadline, "the actors counted too few bytes"
            time.sleep(0.05)
        assert [fabrics(c, "bytes_read") for c in read()] == [{fabric}]
        driver.call("close")
