"""tools/vllm/gpu leaves nothing behind, however it ends: no server, no namespace, and the machine forwards as before."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/vllm/gpu"
sys.path.append(str(TOOL))

import places  # noqa: E402

# Two servers that sleep and name their processes; then the program waits, also in asyncio.
PROGRAM = """
import asyncio, sys
from pathlib import Path
import run, server
server.Server.command = lambda self: ["sh", "-c", "sleep 1000 & echo $! >sleeping-" + self.name + "; wait"]
run.Server.ready = lambda self: 0.0
run.begin_limit(float(sys.argv[2]))
class Options: device, logs = "cpu", ""
r = run.Run.__new__(run.Run)
r.options, r.folder, r.model, r.expected = Options, Path(sys.argv[1]), "m", [None]
with r.pair("ends", run.Backend("GORAIL", "GORAIL", "")):
    asyncio.run(asyncio.sleep(1000)) if sys.argv[3] == "loop" else __import__("time").sleep(1000)
"""


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("where", ["loop", "sleep"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, None])
def test_servers_end(tmp_path: Path, how: "signal.Signals | None", where: str) -> None:
    pytest.importorskip("aiohttp")
    p = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), "3" if how is None else "1000", where], cwd=TOOL, env={**os.environ, "PYTHONPATH": str(TOOL)})
    sleeping = [tmp_path / "ends-GORAIL" / f"sleeping-{name}" for name in ("prefill", "decode")]
    until = time.monotonic() + 60
    while not all(f.exists() and f.read_text().strip() for f in sleeping):
        assert p.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    pids = [int(f.read_text()) for f in sleeping]
    if how is not None:
        p.send_signal(how)
    status = p.wait(60)
    assert not any(lives(pid) for pid in pids)
    assert status == {signal.SIGTERM: 4, signal.SIGHUP: 4, None: 3}.get(how, status) and status != 0


def namespaces() -> "list[str]":
    return subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout.split()


walls = pytest.mark.skipif(os.geteuid() != 0 or places.shutil.which("ip") is None, reason="namespaces need root and ip")


@walls
def test_walls_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    before, forward, ip = namespaces(), places.FORWARD.read_text(), places.ip

    def interrupted(*args: str) -> None:
        ip(*args)
        if "link" in args:
            raise KeyboardInterrupt

    monkeypatch.setattr(places, "ip", interrupted)
    with pytest.raises(KeyboardInterrupt):
        places.Walls().__enter__()
    assert namespaces() == before and places.FORWARD.read_text() == forward


@walls
def test_walls_where_forwarding_is_fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container's /proc/sys may be read-only."""
    before = namespaces()
    forward = tmp_path / "ip_forward"
    forward.write_text("1\n")
    monkeypatch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    monkeypatch.setattr(places, "FORWARD", forward)
    with places.Walls():
        assert namespaces() != before
    assert namespaces() == before
    with open(forward, "w") as f:
        f.write("0\n")
    with pytest.raises(PermissionError):
        places.Walls().__enter__()
    assert namespaces() == before


@walls
def test_walls_restore(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forward = tmp_path / "ip_forward"
    forward.write_text("0\n")
    monkeypatch.setattr(places, "FORWARD", forward)
    with places.Walls():
        assert forward.read_text() == "1"
    assert forward.read_text() == "0\n"
