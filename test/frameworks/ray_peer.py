"""One actor of Ray's direct transport (RDT): its transport of tensors over NIXL, with the calls that Ray makes in an actor.

argv: the actor's name. Ray's cluster is left out: it brings metadata from actor to actor, and here the test does.
"""

import pickle
import sys
from base64 import b64decode, b64encode
from types import SimpleNamespace

import ray
import torch
from ray.experimental.rdt.nixl_tensor_transport import NixlCommunicatorMetadata, NixlTensorTransport
from talk import serve

SHAPES = [(1024, 512), (3, 5, 7), (2_000_000,)]

ray.get_runtime_context = lambda: SimpleNamespace(get_actor_id=lambda: sys.argv[1])
transport = NixlTensorTransport()
transport.get_nixl_agent()
kept: "dict[str, tuple[object, list[torch.Tensor]]]" = {}


def tensors(version: int) -> "list[torch.Tensor]":
    g = torch.Generator().manual_seed(version)
    return [torch.randn(shape, generator=g) for shape in SHAPES]


def make(name: str, version: int) -> str:
    """An actor's method returns tensors. Returns what Ray tells the receiver."""
    made = tensors(version)
    metadata = transport.extract_tensor_transport_metadata(name, made)
    kept[name] = metadata, made
    return b64encode(pickle.dumps(metadata)).decode()


def free(name: str) -> None:
    """The last reference to the tensors is gone: Ray deregisters them."""
    transport.garbage_collect(name, *kept.pop(name))


def take(name: str, metadata: str, version: int) -> int:
    """An actor's method gets the tensors, and compares them. Returns their bytes."""
    came = transport.recv_multiple_tensors(name, pickle.loads(b64decode(metadata)), NixlCommunicatorMetadata())
    assert all(torch.equal(a, b) for a, b in zip(came, tensors(version), strict=True)), "wrong bytes"
    return sum(t.nbytes for t in came)


def fails(name: str, metadata: str) -> str:
    try:
        transport.recv_multiple_tensors(name, pickle.loads(b64decode(metadata)), NixlCommunicatorMetadata())
    except Exception as e:
        return type(e).__name__
    return ""


if __name__ == "__main__":
    serve(make, free, take, fails)
