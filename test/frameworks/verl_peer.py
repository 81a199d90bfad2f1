"""One rank of verl's ring that brings a trainer's weights to rollout workers: its checkpoint engine over host memory.

argv: rank 0 is the trainer. verl imports CuPy for memory of GPUs, and pins host memory, which takes a GPU: neither is used here.
"""

import asyncio
import pickle
import sys
from base64 import b64decode, b64encode
from unittest import mock

import torch
from talk import serve

sys.modules["cupy"] = mock.MagicMock()
from verl.checkpoint_engine.nixl_checkpoint_engine import NIXLCheckpointEngine  # noqa: E402

BUCKET = 1 << 20
SHAPES = [(256, 300), (1024, 1024), (5,), (640, 512), (3, 7, 11)]  # the second takes more than a bucket

rank = int(sys.argv[1])
torch.cuda.synchronize = lambda device=None: None
zeros = torch.zeros
with mock.patch.object(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k)):
    engine = NIXLCheckpointEngine(BUCKET, device="cpu", is_master=rank == 0)
    metadata = engine.prepare()


def weights(version: int) -> "list[tuple[str, torch.Tensor]]":
    """The weights of a version: equal in all ranks."""
    g = torch.Generator().manual_seed(version)
    return [(f"layer{i}", torch.randn(shape, generator=g).to(torch.bfloat16)) for i, shape in enumerate(SHAPES)]


def describe() -> str:
    return b64encode(pickle.dumps(metadata)).decode()


def join(before: str, after: str, ranks: int) -> None:
    """The ranks before and after this one. The ring's ends have none."""
    engine.init_process_group(rank, ranks, *(pickle.loads(b64decode(m)) if m else None for m in (before, after)))


def update(version: int) -> int:
    """Sends the weights of a version, or receives and compares them. Returns how many bytes came."""

    async def received() -> int:
        came = {name: weight.clone() async for name, weight in engine.receive_weights()}
        want = dict(weights(version))
        assert came.keys() == want.keys()
        for name, weight in want.items():
            assert torch.equal(came[name], weight), f"{name} has wrong bytes"
        return sum(w.nbytes for w in came.values())

    async def sent() -> int:
        await engine.send_weights(iter(weights(version)))
        return 0

    return asyncio.run(sent() if rank == 0 else received())


if __name__ == "__main__":
    serve(describe, join, update)
