"""One side of SGLang's disaggregation with its classes of the NIXL backend, over host memory.

argv: prefill or decode, and the port of the bootstrap server, which prefill runs. A KV cache is LAYERS layers of keys and
values in numpy memory. Room is SGLang's word for the number of a request.
"""

import sys
import time
import urllib.request

import numpy as np
from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
from sglang.srt.disaggregation.nixl.conn import NixlKVBootstrapServer, NixlKVManager, NixlKVReceiver, NixlKVSender
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from sglang.srt.server_args import ServerArgs
from talk import serve

LAYERS, PAGES, PAGE_BYTES = 3, 64, 32 << 10
AUX_BYTES = (64, 4096)  # an item of each auxiliary buffer: what SGLang sends beside the KV
NAMES = {value: name for name, value in vars(KVPoll).items() if name[0].isupper()}

mode, port = sys.argv[1], int(sys.argv[2])
address = f"127.0.0.1:{port}"


def cache(seed: int) -> "tuple[list[np.ndarray], list[np.ndarray]]":
    """The KV cache and the auxiliary buffers that prefill sends."""
    rng = np.random.default_rng(seed)
    kv = [rng.integers(0, 256, (PAGES, PAGE_BYTES), dtype=np.uint8) for _ in range(2 * LAYERS)]
    return kv, [rng.integers(0, 256, (PAGES, n), dtype=np.uint8) for n in AUX_BYTES]


def arguments(kv: "list[np.ndarray]", aux: "list[np.ndarray]") -> KVArgs:
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
    a.state_types = a.state_data_ptrs = a.state_data_lens = a.state_item_lens = a.state_layer_ids = []
    a.state_dim_per_tensor = a.state_slice_outer_counts = a.state_conv_shard_groups = []
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
    manager = NixlKVManager(arguments(kv, aux), DisaggregationMode.PREFILL, context())
    senders: "dict[int, NixlKVSender]" = {}

    def admit(room: int, pages: int) -> None:
        senders[room] = NixlKVSender(manager, address, room)
        senders[room].init(pages, aux_index=room)

    def bootstrap(room: int) -> str:
        """Waits for decode's page numbers."""
        return wait(senders[room], KVPoll.WaitingForInput)

    def send(room: int, pages: "list[int]", chunk: int) -> str:
        """Sends the pages in chunks, as chunked prefill does."""
        for i in range(0, len(pages), chunk):
            senders[room].send(np.array(pages[i : i + chunk], dtype=np.int32))
        return wait(senders[room])

    serve(admit, bootstrap, send)


def decode() -> None:
    sent, sent_aux = cache(1)
    kv = [np.zeros_like(x) for x in sent]
    aux = [np.zeros_like(x) for x in sent_aux]
    manager = NixlKVManager(arguments(kv, aux), DisaggregationMode.DECODE, context())
    receivers: "dict[int, NixlKVReceiver]" = {}

    def ask(room: int, pages: "list[int]") -> None:
        """Tells prefill the pages that it shall write."""
        while not manager.try_ensure_parallel_info(address):
            time.sleep(0.05)
        receivers[room] = NixlKVReceiver(manager, address, room)
        receivers[room].init(0)
        receivers[room].send_metadata(np.array(pages, dtype=np.int32), aux_index=room)

    def receive(room: int) -> str:
        return wait(receivers[room])

    def check(rooms: "list[tuple[int, list[int], list[int]]]") -> int:
        """Compares every byte of the cache, also of pages that nobody sent. Returns how many bytes came."""
        came = 0
        want = [np.zeros_like(x) for x in (*kv, *aux)]
        for room, theirs, mine in rooms:
            for w, s in zip(want, sent):
                w[mine] = s[theirs]
                came += w[mine].nbytes
            for w, s in zip(want[len(kv):], sent_aux):
                w[room] = s[room]
                came += w[room].nbytes
        for i, (have, w) in enumerate(zip((*kv, *aux), want)):
            assert (have == w).all(), f"buffer {i}: wrong bytes in pages {np.unique(np.nonzero(have != w)[0])}"
        return came

    serve(ask, receive, check)


if __name__ == "__main__":
    {"prefill": prefill, "decode": decode}[mode]()
