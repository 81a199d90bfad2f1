"""One side of SGLang's disaggregation with its classes of the NIXL backend, over host memory.

argv: prefill or decode, the port of the bootstrap server, which prefill runs, and how states beside the KV go: none, each by a
list of its own (generic), or all by lists prepared once (prepared), which SGLang does for CUDA under the name UCX alone. A KV
cache is LAYERS layers of keys and values in numpy memory. Room is SGLang's word for the number of a request.
"""

import sys
import time
import urllib.request
from types import SimpleNamespace
from unittest import mock

import nixl._api
import numpy as np
from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll, StateType
from sglang.srt.disaggregation.nixl import conn
from sglang.srt.disaggregation.nixl.conn import NixlKVBootstrapServer, NixlKVManager, NixlKVReceiver, NixlKVSender
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from sglang.srt.server_args import ServerArgs
from talk import serve

LAYERS, PAGES, PAGE_BYTES = 3, 64, 32 << 10
AUX_BYTES = (64, 4096)  # an item of each auxiliary buffer: what SGLang sends beside the KV
STATES = {StateType.MAMBA: (24 << 10, 40 << 10), StateType.SWA: (16 << 10, 16 << 10)}  # an item of each buffer of a layer
NAMES = {value: name for name, value in vars(KVPoll).items() if name[0].isupper()}

mode, port, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
address = f"127.0.0.1:{port}"


def cache(seed: int) -> "tuple[list[np.ndarray], list[np.ndarray]]":
    """The KV cache and the auxiliary buffers that prefill sends."""
    rng = np.random.default_rng(seed)
    kv = [rng.integers(0, 256, (PAGES, PAGE_BYTES), dtype=np.uint8) for _ in range(2 * LAYERS)]
    return kv, [rng.integers(0, 256, (PAGES, n), dtype=np.uint8) for n in AUX_BYTES]


def states(seed: int) -> "list[list[np.ndarray]]":
    """The buffers of each state that prefill sends: of Mamba layers, and of layers with a sliding window."""
    rng = np.random.default_rng(seed)
    kinds = {} if way == "none" else STATES
    return [[rng.integers(0, 256, (PAGES, n), dtype=np.uint8) for _ in range(LAYERS) for n in sizes] for sizes in kinds.values()]


def host_memory() -> None:
    """Host memory stands for a GPU's: SGLang names the memory of states VRAM."""

    def named(kind: "str | None") -> "str | None":
        return "DRAM" if kind == "VRAM" else kind

    class Agent(nixl._api.nixl_agent):
        def register_memory(self, memory, mem_type=None, backends=[]):
            return super().register_memory(memory, named(mem_type), backends)

        def get_xfer_descs(self, descs, mem_type=None):
            return super().get_xfer_descs(descs, named(mem_type))

        def prep_xfer_dlist(self, agent, descs, mem_type=None, backends=[]):
            return super().prep_xfer_dlist(agent, descs, named(mem_type), backends)

    nixl._api.nixl_agent = Agent
    wanted = NixlKVManager._prepared_state_component_indices

    def prepared(self, backend):
        with mock.patch.object(conn, "get_device", lambda: SimpleNamespace(device="cuda" if way == "prepared" else "cpu")):
            return wanted(self, backend)

    NixlKVManager._prepared_state_component_indices = prepared


def arguments(state: "list[list[np.ndarray]]", kv: "list[np.ndarray]", aux: "list[np.ndarray]") -> KVArgs:
    """What SGLang's scheduler fills in from its memory pool. DRAM is the kind that it gives a pool of host memory."""
    a = KVArgs()
    a.engine_rank = a.gpu_id = a.pp_rank = a.system_dp_rank = a.prefill_start_layer = 0
    a.kv_data_ptrs = [x.ctypes.data for x in kv]
    a.kv_data_lens = [x.nbytes for x in kv]
    a.kv_item_lens = [PAGE_BYTES for _ in kv]
    a.kv_data_mem_kinds = ["DRAM" for _ in kv]
    a.kv_layer_ids = [i % LAYERS for i in range(len(kv))]
    a.kv_cache_dtype_str = "float16"
    a.aux_data_ptrs = [x.ctypes.data for x in aux]
    a.aux_data_lens = [x.nbytes for x in aux]
    a.aux_item_lens = list(AUX_BYTES)
    a.state_types = list(STATES)[: len(state)]
    a.state_data_ptrs = [[x.ctypes.data for x in xs] for xs in state]
    a.state_data_lens = [[x.nbytes for x in xs] for xs in state]
    a.state_item_lens = [[x.shape[1] for x in xs] for xs in state]
    a.state_layer_ids = [[i // 2 for i in range(len(xs))] for xs in state]
    a.state_dim_per_tensor, a.state_slice_outer_counts, a.state_conv_shard_groups = ([[] for _ in state] for _ in range(3))
    a.is_hybrid_mla_backend, a.mla_compression_ratios, a.prefill_end_layer = False, None, None
    a.ib_device, a.rust_http_port, a.swa_kv_cache_layout = "", None, None
    a.kv_head_num = a.total_kv_head_num = a.page_size = 1
    return a


def context() -> ServerArgs:
    """SGLang's options and its place among ranks: one rank, on processors."""
    args = ServerArgs(
        model_path="dummy", device="cpu", host="127.0.0.1", port=port, disaggregation_mode=mode,
        disaggregation_transfer_backend="nixl", disaggregation_bootstrap_port=port,
    )
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    get_parallel().override_permanently(attn_cp_rank=0, pp_group=None)
    return args


def wait_server() -> None:
    """Waits until the bootstrap server answers."""
    while True:
        try:
            urllib.request.urlopen(f"http://{address}/health", timeout=60).close()
            return
        except OSError:
            time.sleep(0.05)


def wait(peer: "NixlKVSender | NixlKVReceiver", *wanted: int) -> str:
    """Polls as SGLang's scheduler does, until one of these states or an end. The caller has a deadline."""
    while (state := peer.poll()) not in (*wanted, KVPoll.Success, KVPoll.Failed):
        time.sleep(0.002)
    return NAMES[state]


def prefill() -> None:
    kv, aux = cache(1)
    NixlKVBootstrapServer("127.0.0.1", port)
    wait_server()
    state = states(2)
    manager = NixlKVManager(arguments(state, kv, aux), DisaggregationMode.PREFILL, context())
    senders: "dict[int, NixlKVSender]" = {}

    def admit(room: int, pages: int) -> None:
        senders[room] = NixlKVSender(manager, address, room)
        senders[room].init(pages, aux_index=room)

    def bootstrap(room: int) -> str:
        """Waits for decode's page numbers."""
        return wait(senders[room], KVPoll.WaitingForInput)

    def send(room: int, pages: "list[int]", chunk: int, items: "list[list[int]]") -> str:
        """Sends the pages in chunks, as chunked prefill does, and the items of states with the last one."""
        for i in range(0, len(pages), chunk):
            last = i + chunk >= len(pages)
            senders[room].send(np.array(pages[i : i + chunk], dtype=np.int32), items if items and last else None)
        return wait(senders[room])

    def plans() -> "list[int]":
        """How many states are prepared for each peer."""
        return [len(plan.components) for plan in manager._prepared_state_plans.values()]

    serve(admit, bootstrap, send, plans)


def decode() -> None:
    sent, sent_aux = cache(1)
    kv = [np.zeros_like(x) for x in sent]
    aux = [np.zeros_like(x) for x in sent_aux]
    sent_state = states(2)
    state = [[np.zeros_like(x) for x in xs] for xs in sent_state]
    manager = NixlKVManager(arguments(state, kv, aux), DisaggregationMode.DECODE, context())
    receivers: "dict[int, NixlKVReceiver]" = {}

    def ask(room: int, pages: "list[int]", items: "list[list[int]]") -> None:
        """Tells prefill the pages that it shall write, and the items of each state."""
        while not manager.try_ensure_parallel_info(address):
            time.sleep(0.05)
        receivers[room] = NixlKVReceiver(manager, address, room)
        receivers[room].init(0)
        receivers[room].send_metadata(np.array(pages, dtype=np.int32), aux_index=room, state_indices=items or None)

    def receive(room: int) -> str:
        return wait(receivers[room])

    def check(rooms: "list[tuple[int, list[int], list[int], list[list[int]], list[list[int]]]]") -> int:
        """Compares every byte of the cache, also of pages that nobody sent. Returns how many bytes came."""
        came = 0
        want = [np.zeros_like(x) for x in (*kv, *aux)]
        want_state = [[np.zeros_like(x) for x in xs] for xs in state]
        for room, theirs, mine, their_items, my_items in rooms:
            for ws, ss, a, b in zip(want_state, sent_state, my_items, their_items):
                for w, s in zip(ws, ss):
                    w[a] = s[b]
                    came += w[a].nbytes
            for w, s in zip(want, sent):
                w[mine] = s[theirs]
                came += w[mine].nbytes
            for w, s in zip(want[len(kv):], sent_aux):
                w[room] = s[room]
                came += w[room].nbytes
        every, wanted = [*kv, *aux, *sum(state, [])], want + sum(want_state, [])
        for i, (have, w) in enumerate(zip(every, wanted)):
            assert (have == w).all(), f"buffer {i}: wrong bytes in pages {np.unique(np.nonzero(have != w)[0])}"
        return came

    serve(ask, receive, check)


if __name__ == "__main__":
    host_memory()
    {"prefill": prefill, "decode": decode}[mode]()
