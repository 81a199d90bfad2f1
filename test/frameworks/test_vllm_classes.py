"""vLLM's classes that use NIXL beside its connectors: expert balancing, encoder cache, and the P2P tier of KV offloading."""

import random
import signal

import pytest
from peer import Peer, fabrics, free_port, moved

ALIAS = "UCX"  # expert balancing and the encoder cache ask for no other name
TCP = {"GORAIL_PROVIDER": "tcp"}
FABRICS = {"tcp": TCP, "sm": {}}


def group(start, ranks: int, options: "dict[str, str]", tag: str = "") -> "list[Peer]":
    port = str(free_port())
    peers = [start(f"rank{i}{tag}", "vllm_eplb_peer.py", [str(i), str(ranks), port], options, alias=ALIAS) for i in range(ranks)]
    return [p.ready() for p in peers]


def rearranged(peers: "list[Peer]", seed: int) -> "list[int]":
    """All ranks move their experts at once. Returns the bytes that came to each."""
    for p in peers:
        p.post("rearrange", seed)
    return [p.result() for p in peers]  # type: ignore[misc]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("fabric", FABRICS)
def test_experts(start, fabric: str, ranks: int) -> None:
    """Each expert's weights lie where the new places say, and the plugin's counters have every byte that came from another rank."""
    peers = group(start, ranks, FABRICS[fabric])
    came = [sum(both) for both in zip(rearranged(peers, 1), rearranged(peers, 2))]
    assert all(came)
    for peer, want in zip(peers, came):
        counted = peer.counters()
        assert moved(counted, "bytes_read") == want
        assert fabrics(counted, "bytes_read") == {fabric}


def test_experts_killed(start) -> None:
    """A rank dies: the others' READs end with an error. New ranks balance again."""
    peers = group(start, 2, TCP)
    rearranged(peers, 1)
    peers[1].kill()
    assert peers[0].call("fails", 2) != ""
    peers[0].kill()
    assert all(rearranged(group(start, 2, TCP, "again"), 3))


IMAGES = [(f"image{i}", i, 1 + i % 3) for i in range(6)]  # name, seed, blocks: 12 in all
IMAGE_BYTES = 12 * (128 << 10)


def served(producer: Peer, consumer: Peer, images: "list[tuple[str, int, int]]") -> None:
    for image in images:
        consumer.call("ask", *image)
    producer.call("grant", len(images))
    assert consumer.call("finish") == {"came": sorted(i[0] for i in images), "failed": []}
    producer.call("finished")


@pytest.mark.parametrize("fabric", FABRICS)
def test_encoder_cache(start, fabric: str) -> None:
    """A consumer reads the outputs of the producer's encoder. After a kill its READs fail, and a producer at the same port serves it."""
    port = str(free_port())
    producer, consumer = (start(n, "vllm_encoder_peer.py", [n, port], FABRICS[fabric], alias=ALIAS).ready() for n in ("producer", "consumer"))
    for image in IMAGES:
        producer.call("put", *image)
    served(producer, consumer, IMAGES)

    late = [("late", 50, 3)]
    producer.call("put", *late[0])
    consumer.call("ask", *late[0])
    producer.call("grant", 1)
    producer.kill()
    assert consumer.call("finish") == {"came": [], "failed": ["late"]}

    other = start("producer2", "vllm_encoder_peer.py", ["producer", port], FABRICS[fabric], alias=ALIAS).ready()
    new = [(f"new{i}", 60 + i, 2) for i in range(3)]
    for image in new:
        other.call("put", *image)
    served(other, consumer, new)
    counted = consumer.counters()
    assert moved(counted, "bytes_read") == IMAGE_BYTES + 6 * (128 << 10)
    assert fabrics(counted, "bytes_read") == {fabric}


# The backend and the fabric of the P2P tier: it takes any backend, and by default UCX with engine_config.
TIERS = {"tcp": ("GORAIL", TCP), "sm": ("GORAIL", {}), "alias": ("UCX", TCP)}
BLOCKS = 96


def tier(start, name: str, case: str) -> Peer:
    backend, options = TIERS[case]
    return start(name, "vllm_p2p_peer.py", [name, backend, str(BLOCKS)], options, alias=None if backend == "GORAIL" else backend)


def meet(here: Peer, there: Peer) -> None:
    here.call("add", "there", *there.call("describe"))


@pytest.mark.parametrize("case", TIERS)
def test_p2p_tier(start, case: str) -> None:
    """One side writes blocks to places that the other named."""
    here, there = tier(start, "here", case), tier(start, "there", case)
    here.ready(), there.ready()
    meet(here, there)
    here.call("fill", 1)
    mine, theirs = (random.Random(seed).sample(range(BLOCKS), 40) for seed in (1, 2))
    writes = [here.call("write", "there", mine[i : i + 10], theirs[i : i + 10]) for i in range(0, 40, 10)]
    assert here.call("ended", "there", writes) == {"done": writes, "failed": [], "fault": None}
    came = there.call("check", 1, mine, theirs)
    counted = here.counters()
    assert moved(counted, "bytes_written") == came
    assert fabrics(counted, "bytes_written") == {"sm" if case == "sm" else "tcp"}


@pytest.mark.parametrize("case", ["tcp", "alias"])
def test_p2p_tier_cancel(start, case: str) -> None:
    """A WRITE to a peer that stands still is not released by the mode wait, and ends when the peer goes on. A killed peer is replaced."""
    here, there = tier(start, "here", case), tier(start, "there", case)
    here.ready(), there.ready()
    meet(here, there)
    here.call("fill", 1)
    all_blocks = list(range(BLOCKS))
    first = here.call("write", "there", [0], [0])
    assert here.call("ended", "there", [first])["done"] == [first]  # type: ignore[index]

    there.process.send_signal(signal.SIGSTOP)
    write = here.call("write", "there", all_blocks, all_blocks)
    assert here.call("cancel", [write]) == [write]
    there.process.send_signal(signal.SIGCONT)
    assert here.call("ended", "there", [write]) == {"done": [write], "failed": [], "fault": None}
    assert there.call("check", 1, all_blocks, all_blocks) == BLOCKS << 20

    there.process.send_signal(signal.SIGSTOP)
    write = here.call("write", "there", all_blocks, all_blocks)
    assert here.call("cancel", [write]) == [write]
    there.kill()
    assert here.call("ended", "there", [write]) == {"done": [], "failed": [write], "fault": "NIXL_ERR_REMOTE_DISCONNECT"}
    here.call("remove", "there")

    other = tier(start, "there2", case).ready()
    meet(here, other)
    write = here.call("write", "there", [5, 3], [0, 95])
    assert here.call("ended", "there", [write]) == {"done": [write], "failed": [], "fault": None}
    other.call("check", 1, [5, 3], [0, 95])
