"""Options from Python: all defaults handed back, one device selected, a bad value refused without side effects."""

import common
from common import BACKEND, api

size = 1 << 20


def bare(name):
    return api.nixl_agent(name, api.nixl_agent_config(backends=[]))


def moves(a, name):
    src, here = common.buffer(a, size, 1)
    dst, there = common.buffer(a, size, 2)
    h = common.request(a, "WRITE", here, there, name, b"n")
    assert common.finish(a, h, a.transfer(h)) == "DONE"
    assert (dst == 1).all()


a = bare("defaults")
defaults = a.get_plugin_params(BACKEND)
assert {"provider", "devices", "xfer_timeout"} <= defaults.keys(), defaults
a.create_backend(BACKEND, defaults)
moves(a, "defaults")

b = bare("loopback")
b.create_backend(BACKEND, {"devices": "lo", "xfer_timeout": "10s"})
assert b.get_backend_params(BACKEND)["devices"] == "lo"
moves(b, "loopback")

c = bare("careless")
for bad in ({"xfer_timeout": "10 minutes"}, {"devices": "nosuch0"}, {"libfabric_path": "/nonexistent", "provider": "efa"},
            {"devices": "lo", "made_up": "by somebody"}, {"device": "lo"}):
    try:
        c.create_backend(BACKEND, bad)
    except Exception as e:  # the exact error differs between releases
        print(bad, type(e).__name__, e, flush=True)
    else:
        raise AssertionError(f"{bad} was taken")
c.create_backend(BACKEND, {"devices": "lo", "engine_config": ""})  # an empty value counts as not given
moves(c, "careless")
print("\nok", flush=True)
