"""A plugin folder made by gorail plugins: argv[1] is a backend; all others are listed and load. With --alias argv[1] is GORAIL."""

import sys

import common
from common import BACKEND, api

a = api.nixl_agent("bare", api.nixl_agent_config(backends=[]))
shown = a.get_plugin_list()
assert {"GORAIL", "UCX", "POSIX", "LIBFABRIC"} <= set(shown), shown
params = a.get_plugin_params(BACKEND)
if "--alias" in sys.argv:
    assert {"num_workers", "device_list", "ucx_error_handling_mode", "xfer_timeout"} <= params.keys(), params
    params["num_workers"] = "3"  # as nixlbench does: a shown parameter, changed
a.create_backend(BACKEND, params)
assert a.get_backend_params(BACKEND) == params

src, here = common.buffer(a, 1 << 20, 1)
if BACKEND != "POSIX":  # POSIX moves between memory and files
    dst, there = common.buffer(a, 1 << 20, 2)
    h = common.request(a, "WRITE", here, there, "bare", b"n")
    assert common.finish(a, h, a.transfer(h)) == "DONE"
    assert (dst == 1).all()
    a.release_xfer_handle(h)
print("\nok", flush=True)
