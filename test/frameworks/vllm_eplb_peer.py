"""One rank of vLLM's expert balancing with its NIXL communicator, over host memory.

argv: rank, number of ranks, port of the first rank. vLLM's class names the memory VRAM: here it is set to DRAM, and nothing else.
"""

import contextlib
import sys

import torch
from talk import serve
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.eplb.eplb_communicator import NixlEplbCommunicator
from vllm.distributed.eplb.rebalance_execute import rearrange_expert_weights_inplace

LAYERS, LOCAL = 3, 6  # experts of a rank
SHAPES = ((64, 256), (128, 64))  # the weights of an expert: 64 KiB and 32 KiB

rank, ranks, port = (int(a) for a in sys.argv[1:])
configured = contextlib.ExitStack()  # for the life of the process
configured.enter_context(set_current_vllm_config(VllmConfig()))
parallel_state.init_distributed_environment(ranks, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
parallel_state.initialize_model_parallel(ranks, 1)
group = parallel_state.get_tp_group().cpu_group


def expert(layer: int, weight: int, number: int) -> torch.Tensor:
    """The weight of a logical expert: the same in all ranks."""
    seed = torch.Generator().manual_seed((layer * len(SHAPES) + weight) * 1000 + number)
    return torch.randn(SHAPES[weight], generator=seed)


def placed(seed: int) -> torch.Tensor:
    """The logical expert of each row of each rank, for each layer. Some experts have two rows."""
    generator = torch.Generator().manual_seed(seed)
    experts = torch.arange(ranks * LOCAL) % (ranks * LOCAL - 2)
    return torch.stack([experts[torch.randperm(len(experts), generator=generator)] for _ in range(LAYERS)])


def mine(places: torch.Tensor, layer: int) -> "list[int]":
    return places[layer, rank * LOCAL : (rank + 1) * LOCAL].tolist()


now = placed(0)
weights = [[torch.stack([expert(layer, w, e) for e in mine(now, layer)]) for w in range(len(SHAPES))] for layer in range(LAYERS)]
buffer = [torch.zeros_like(w) for w in weights[0]]
communicator = NixlEplbCommunicator(group, weights, buffer)
communicator._nixl_memory_type = "DRAM"


def rearrange(seed: int) -> int:
    """Moves the experts to other places, and compares all weights. Returns how many bytes came from other ranks."""
    global now
    new, came = placed(seed), 0
    rearrange_expert_weights_inplace(now, new, weights, buffer, group, communicator)
    for layer in range(LAYERS):
        came += len(set(mine(new, layer)) - set(mine(now, layer))) * sum(4 * a * b for a, b in SHAPES)
        for w in range(len(SHAPES)):
            for row, number in enumerate(mine(new, layer)):
                assert torch.equal(weights[layer][w][row], expert(layer, w, number)), f"layer {layer} weight {w}: row {row} is not expert {number}"
    now = new
    return came


def fails(seed: int) -> str:
    """Moves the experts while another rank is dead. Returns the error."""
    try:
        rearrange_expert_weights_inplace(now, placed(seed), weights, buffer, group, communicator)
    except Exception as e:
        return repr(e)
    return ""


if __name__ == "__main__":
    serve(rearrange, fails)
