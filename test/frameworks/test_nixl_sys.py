"""The crate nixl-sys over GORAIL: two Rust processes write and read, and notify each other."""

import os
import re
import subprocess
from pathlib import Path

import nixl_gorail
import pytest
from peer import fabrics, moved

PROGRAM = os.environ.get("GORAIL_TEST_NIXL_SYS", "")
SUITE = os.environ.get("GORAIL_TEST_NIXL_SYS_SUITE", "")  # the crate's own tests, which want UCX
LIBS = os.environ.get("GORAIL_TEST_NIXL_LIBS", "")  # the folder of libnixl_capi.so
SIZE = 3 << 20

CASES = {"tcp": ("GORAIL", ["provider=tcp"]), "sm": ("GORAIL", []), "alias": ("UCX", ["provider=tcp"])}


@pytest.mark.skipif(not PROGRAM, reason="no program: tools/test-frameworks.sh builds it where there is a cargo")
@pytest.mark.parametrize("case", CASES)
def test_bytes(start, case: str) -> None:
    """Every byte arrives both ways, the notifications too, and the plugin's counters say so."""
    backend, params = CASES[case]
    alias = None if backend == "GORAIL" else backend
    here, there = (start(name, Path(PROGRAM), [name, backend, *params], {"LD_LIBRARY_PATH": LIBS}, alias=alias) for name in ("here", "there"))
    here.ready(), there.ready()
    metadata, address = there.call("describe")
    assert here.call("load", metadata) == "there"

    here.call("fill", 11)
    assert here.call("transfer", "there", address, "WRITE") == SIZE
    assert there.call("notified") == {"here": ["moved"]}
    assert there.call("check", 11) is True
    there.call("fill", 22)
    assert there.call("check", 11) is False
    assert here.call("transfer", "there", address, "READ") == SIZE
    assert there.call("notified") == {"here": ["moved"]}
    assert here.call("check", 22) is True

    counted = here.counters()
    assert moved(counted, "bytes_written") == moved(counted, "bytes_read") == SIZE
    assert fabrics(counted, "bytes_written") == {"sm" if case == "sm" else "tcp"}


@pytest.mark.skipif(not SUITE, reason="no program: tools/test-frameworks.sh builds it where there is a cargo")
def test_suite(tmp_path: Path) -> None:
    """The crate's own tests pass under the name UCX, all of them."""
    env = {**os.environ, "LD_LIBRARY_PATH": LIBS, "NIXL_PLUGIN_DIR": nixl_gorail.plugin_dir(["UCX"]), "GORAIL_LOG": "info", "GORAIL_LOG_FILE": str(tmp_path / "log")}
    done = subprocess.run([SUITE], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:]
    result = re.search(r"test result: ok. (\d+) passed; 0 failed; (\d+) ignored", done.stdout)
    assert result and result.groups() == ("97", "0"), done.stdout[-500:]
    assert "backend=GORAIL" in (tmp_path / "log").read_text(), "the tests ran on another plugin"
