"""One side of ModelExpress: its manager of transfers over host memory, which it asks for as an accelerator's. argv: a name, and the port that serves its metadata."""

import sys
from dataclasses import asdict

import torch
from modelexpress.accelerators import CudaAcceleratorBackend
from modelexpress.nixl_transfer import NixlTransferManager
from modelexpress.types import TensorDescriptor
from talk import serve

SHAPES = [(512, 256), (3, 1000, 70), (17,), (1024, 1024)]
DTYPES = [torch.float32, torch.bfloat16]
ARTIFACT = 3 << 20

name, port = sys.argv[1], int(sys.argv[2])


class Host(CudaAcceleratorBackend):
    """Host memory stands for a GPU's."""

    nixl_mem_type = "DRAM"

    def set_device(self, device_id: int) -> None:
        pass

    def synchronize(self, device_id: "int | None" = None) -> None:
        pass


manager = NixlTransferManager(name, 0, listen_port=port, accelerator_backend=Host())
manager.initialize()
weights = {f"layer{i}": torch.zeros(shape, dtype=DTYPES[i % 2]) for i, shape in enumerate(SHAPES)}
artifact = torch.zeros(ARTIFACT, dtype=torch.uint8)
manager.register_tensors(weights)
manager.register_dram_buffer(artifact)


def content(seed: int) -> "tuple[dict[str, torch.Tensor], torch.Tensor]":
    """The weights and the artifact of a version: equal in both processes."""
    g = torch.Generator().manual_seed(seed)
    return {n: torch.randn(w.shape, generator=g).to(w.dtype) for n, w in weights.items()}, torch.randint(0, 256, (ARTIFACT,), dtype=torch.uint8, generator=g)


def fill(seed: int) -> None:
    values, file = content(seed)
    for n, value in values.items():
        weights[n].copy_(value)
    artifact.copy_(file)


def describe() -> "list[object]":
    """What ModelExpress' server tells a target."""
    return [[asdict(d) for d in manager.tensor_descriptors], artifact.data_ptr()]


def load(source: str, source_port: int, tensors: "list[dict[str, object]]", file: int, seed: int) -> int:
    """Fetches the source's metadata from its port, reads all, and compares all. Returns how many bytes came."""
    manager.fetch_remote_and_wait(source, "127.0.0.1", source_port)
    descriptors = [TensorDescriptor(**d) for d in tensors]  # type: ignore[arg-type]
    came, count, _ = manager.receive_from_source(b"", descriptors, timeout_seconds=60, remote_agent_name=source, require_exact_match=True)
    assert count == len(weights)
    manager.receive_dram_into_buffer(source, file, artifact, ARTIFACT, timeout_seconds=60)
    values, want = content(seed)
    for n, value in values.items():
        assert torch.equal(weights[n], value), f"{n} has wrong bytes"
    assert torch.equal(artifact, want), "the artifact has wrong bytes"
    assert manager.is_healthy()
    return came + ARTIFACT


def fails(source: str, file: int) -> str:
    """Reads from a dead source. Returns the error."""
    try:
        manager.receive_dram_into_buffer(source, file, artifact, ARTIFACT, timeout_seconds=60)
    except Exception as e:
        return repr(e)
    finally:
        manager.remove_remote_agent(source)
    return ""


if __name__ == "__main__":
    serve(fill, describe, load, fails)
