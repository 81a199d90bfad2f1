"""One side of vLLM's encoder cache connector: its region, its cache, its sessions and its NIXL transport, which asks for UCX.

argv: producer or consumer, and the port of the producer. vLLM's scheduler calls the sessions once a step; here a command does.
"""

import sys
import time

import torch
from nixl._bindings import nixlRemoteDisconnectError
from talk import serve
from vllm.distributed.ec_transfer.ec_connector.cpu import session
from vllm.distributed.ec_transfer.ec_connector.cpu.control.zmq import ZmqClientTransport, ZmqServerTransport
from vllm.distributed.ec_transfer.ec_connector.cpu.data.nixl import NixlDataTransport
from vllm.distributed.ec_transfer.ec_connector.cpu.ec_shared_region import ECSharedRegion
from vllm.distributed.ec_transfer.ec_connector.cpu.scheduler.embedding_cache import EmbeddingCache

BLOCKS, BLOCK_BYTES = 48, 128 << 10

role, port = sys.argv[1], int(sys.argv[2])
name = f"{role}-{time.time_ns()}"
region = ECSharedRegion(name, BLOCKS, BLOCK_BYTES)
cache = EmbeddingCache(BLOCKS)
data = NixlDataTransport(name, region.blocks.data_ptr(), BLOCKS, BLOCK_BYTES, region.blocks.nbytes)


def content(seed: int, blocks: int) -> torch.Tensor:
    """The encoder's output for an image: equal in both processes."""
    return torch.randint(-128, 128, (blocks, BLOCK_BYTES), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def producer() -> None:
    peers = session.ProducerSession(ZmqServerTransport("127.0.0.1", port), data, cache, "same")

    def put(image: str, seed: int, blocks: int) -> None:
        entry = cache.alloc(image, blocks)
        assert entry, "no block is free"
        region.blocks[list(entry.block_ids)] = content(seed, blocks)
        cache.mark_ready(image)

    def grant(count: int) -> None:
        """Steps until so many images are granted."""
        while len(peers._active_xfers) < count:
            peers.poll_step()
            time.sleep(0.001)

    def finished() -> None:
        """Steps until the notification of each READ has come: no block stays held."""
        while peers._active_xfers:
            peers.poll_step()
            time.sleep(0.001)
        assert not cache.has_held_entries()

    serve(put, grant, finished)


def consumer() -> None:
    address, transport = ("127.0.0.1", port), ZmqClientTransport()
    peer = session.ConsumerSession(address, transport.connect(address), transport, data, "same")
    asked: "dict[str, tuple[int, int]]" = {}

    def ask(image: str, seed: int, blocks: int) -> None:
        entry = cache.alloc(image, blocks)
        assert entry, "no block is free"
        region.blocks[list(entry.block_ids)] = 0
        asked[image] = (seed, blocks)
        peer.start_xfer(image, list(entry.block_ids), time.monotonic() + 60)

    def finish() -> "dict[str, list[str]]":
        """Steps until each image is there or has failed, and compares all blocks.

        The plugin may know of a producer's death before the READ is posted. vLLM lets that error through.
        """
        came: "list[str]" = []
        failed: "list[str]" = []
        while asked.keys() - {*came, *failed}:
            try:
                peer.poll(transport.poll().get(address, []), time.monotonic())
            except nixlRemoteDisconnectError:
                peer.on_peer_down()
            results = peer.take_results()
            for image in results.completed:
                cache.mark_ready(image)
                entry = cache.get(image)
                assert entry and torch.equal(region.blocks[list(entry.block_ids)], content(*asked[image])), f"{image} has wrong bytes"
            for image in results.tombstoned | results.retryable:
                cache.discard(image)
                failed.append(image)
            came += results.completed
            time.sleep(0.001)
        asked.clear()
        assert not cache.has_held_entries()
        return {"came": sorted(came), "failed": sorted(failed)}

    serve(ask, finish)


if __name__ == "__main__":
    {"producer": producer, "consumer": consumer}[role]()
