"""A driver of Ray with actors that hand tensors to each other by Ray's direct transport (RDT), NIXL. argv: a folder for Ray's files."""

import os
import signal
import sys

import ray
import torch
from talk import serve

SHAPES = [(1024, 512), (3, 5, 7), (2_000_000,)]


@ray.remote(num_cpus=0)
class Actor:
    @ray.method(tensor_transport="nixl")
    def make(self, version: int) -> "list[torch.Tensor]":
        return self.tensors(version)

    def check(self, came: "list[torch.Tensor]", version: int) -> int:
        """Compares all tensors. Returns their bytes."""
        want = self.tensors(version)
        assert len(came) == len(want) and all(torch.equal(a, b) for a, b in zip(came, want)), "wrong bytes"
        return sum(t.nbytes for t in came)

    def tensors(self, version: int) -> "list[torch.Tensor]":
        g = torch.Generator().manual_seed(version)
        return [torch.randn(shape, generator=g) for shape in SHAPES]

    def process(self) -> int:
        return os.getpid()


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20, _temp_dir=sys.argv[1])
actors: "dict[str, ray.actor.ActorHandle]" = {}


def spawn(name: str) -> int:
    actors[name] = Actor.remote()
    return ray.get(actors[name].process.remote())


def move(source: str, target: str, version: int) -> int:
    return ray.get(actors[target].check.remote(actors[source].make.remote(version), version))


def killed(source: str, target: str, version: int) -> str:
    """The source dies when it has made its tensors. Returns the target's error."""
    made = actors[source].make.remote(version)
    ray.wait([made], fetch_local=False)
    os.kill(ray.get(actors[source].process.remote()), signal.SIGKILL)
    try:
        ray.get(actors[target].check.remote(made, version))
    except Exception as e:
        return repr(e)
    return ""


if __name__ == "__main__":
    serve(spawn, move, killed)
