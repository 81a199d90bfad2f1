"""A driver of Ray with a cluster of its own on loopback, and actors that hand tensors on by NIXL (RDT).

argv: a folder for the cluster's files. Its path is short: Ray puts sockets there.
"""

import os
import sys

os.environ["RAY_AUTH_MODE"] = "disabled"  # the cluster listens on loopback, and ends with this process

import ray  # noqa: E402
import ray.dag.compiled_dag_node  # noqa: E402, F401  a thread of RDT imports it while the driver does
import torch  # noqa: E402
from talk import serve  # noqa: E402

LIMIT = 120  # seconds
SHAPES = [(1024, 512), (3, 5, 7), (2_000_000,)]

ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False, _node_ip_address="127.0.0.1", _temp_dir=sys.argv[1])


def tensors(version: int) -> "list[torch.Tensor]":
    g = torch.Generator().manual_seed(version)
    return [torch.randn(shape, generator=g) for shape in SHAPES]


@ray.remote(enable_tensor_transport=True)
class Source:
    @ray.method(tensor_transport="nixl")
    def make(self, version: int) -> "list[torch.Tensor]":
        return tensors(version)


@ray.remote(enable_tensor_transport=True)
class Target:
    def take(self, came: "list[torch.Tensor]", version: int) -> int:
        """Compares the tensors. Returns their bytes, 0 for wrong ones."""
        right = all(torch.equal(a, b) for a, b in zip(came, tensors(version), strict=True))
        return sum(t.nbytes for t in came) if right else 0


actors = {"source": Source.remote(), "target": Target.remote()}


def move(version: int, expected: int) -> int:
    return ray.get(actors["target"].take.remote(actors["source"].make.remote(version), expected), timeout=LIMIT)


def killed(version: int) -> str:
    """The source dies with tensors that nobody has taken yet. Returns what the target's caller gets."""
    made = actors["source"].make.remote(version)
    ray.wait([made], timeout=LIMIT, fetch_local=False)
    ray.kill(actors["source"])
    try:
        ray.get(actors["target"].take.remote(made, version), timeout=LIMIT)
    except Exception as e:
        return type(e).__name__
    finally:
        actors["source"] = Source.remote()
    return ""


def close() -> None:
    ray.shutdown()


if __name__ == "__main__":
    serve(move, killed, close)
