"""Starts, stops and ends vLLM servers, each in a process group and a folder of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import nixl_gorail
import patches

START = 600  # seconds: three processes import torch, on few cores that others may use, too
END = 90
XFER_TIMEOUT = 20  # longer than a stop of 10 s in the tests, shorter than vLLM's lease of 30 s

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "DEBUG",  # the tests wait for lines of the connector
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "30",
    "GORAIL_LOG": "debug",
}


@dataclass(frozen=True)
class Way:
    """How KV goes from prefill to decode: over which fabric, under which name of NIXL's backends, pulled or pushed."""

    fabric: str
    backend: str = "GORAIL"
    push: bool = False
    sleeps: bool = False  # with vLLM's sleep mode, which wants the name UCX
    ranks: "tuple[int, int]" = (1, 1)  # of prefill and of decode: tensor parallelism

    @property
    def options(self) -> "dict[str, str]":
        """GORAIL's. Without a provider, two servers of one host take shared memory."""
        return {"GORAIL_XFER_TIMEOUT": f"{XFER_TIMEOUT}s"} | ({"GORAIL_PROVIDER": "tcp"} if self.fabric == "tcp" else {})

    def transfer(self, role: str, policy: str) -> str:
        """The argument of --kv-transfer-config."""
        return json.dumps({
            "kv_connector": "NixlPushConnector" if self.push else "NixlConnector",
            "kv_role": role,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"backends": [self.backend]},
        })


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    def __init__(self, name: str, role: str, folder: Path, model: str, way: Way):
        self.name, self.role, self.folder, self.model, self.way = name, role, folder, model, way
        self.policy = "fail"  # what vLLM does with a request whose pull failed: its default
        self.port, self.side_port = free_port(), free_port()
        self.starts = 0
        self.process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}{self.starts}.log"

    @property
    def stats(self) -> Path:
        return self.folder / f"{self.name}{self.starts}.json"

    def start(self) -> None:
        """Starts the server, under the ports that it has, and does not wait."""
        self.starts += 1
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model, "--served-model-name", "tiny",
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--max-model-len", "2048",
            "--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching",  # each decode pulls its whole prompt
            "--shutdown-timeout", "30",  # the default kills the worker, and then no counters are written
            "--kv-transfer-config", self.way.transfer(self.role, self.policy),
        ]
        env = {
            **os.environ, **ENVIRONMENT, **self.way.options,
            "NIXL_PLUGIN_DIR": nixl_gorail.plugin_dir([] if self.way.backend == "GORAIL" else [self.way.backend]),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
            "GORAIL_STATS_FILE": str(self.stats),
        }
        env.pop("PYTHONPATH", None)
        ranks = self.way.ranks[0 if self.role == "kv_producer" else 1]
        if ranks > 1:
            command += ["--tensor-parallel-size", str(ranks)]
            del env["GORAIL_STATS_FILE"]  # each rank has an engine
        if self.way.sleeps:
            command += ["--enable-sleep-mode", "--worker-cls", "patches.Worker"]
            env["VLLM_SERVER_DEV_MODE"] = "1"  # with the calls sleep and wake_up
        if self.way.sleeps or ranks > 1:
            env["PYTHONPATH"] = patches.installed(self.folder)
        with open(self.log, "wb") as log:
            # In the folder: this tree's folder test/vllm must not stand for the package.
            # No session of its own: in one, a server that yields in a loop, as prefill while it holds KV to push, was seen to
            # keep runnable threads of the other server from the processors for 30 s (autogroups of Linux).
            self.process = subprocess.Popen(
                command, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def ready(self) -> "Server":
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            assert self.process and self.process.poll() is None, f"{self.name} ended: {self.tail()}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"{self.name} is not ready after {START} s: {self.tail()}")

    def signal(self, number: int) -> None:
        """Sends a signal to all processes of the server."""
        assert self.process
        os.killpg(self.process.pid, number)

    def stand_still(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continues a server that stands still. Others do not notice."""
        try:
            self.signal(signal.SIGCONT)
        except ProcessLookupError:
            pass  # it was killed

    def close(self) -> None:
        """Ends the server as an operator does: SIGTERM to its first process."""
        assert self.process
        self.process.terminate()
        self.process.wait(END)
        self.kill()

    def kill(self) -> None:
        """Kills what is left of the server, and waits until no process of its group is left."""
        if not self.process:
            return
        deadline = time.monotonic() + END
        try:
            while time.monotonic() < deadline:
                self.signal(signal.SIGKILL)
                self.process.poll()
                time.sleep(0.05)
        except ProcessLookupError:
            self.process.wait(END)
            return
        raise AssertionError(f"processes of {self.name} are left {END} s after SIGKILL")

    def post(self, path: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", b"", method="POST")
        urllib.request.urlopen(request, timeout=60).close()

    def processor_time(self) -> float:
        """Seconds of processor time that all processes of the server have used."""
        assert self.process
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # ended
            if int(fields[2]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def lines(self, *words: str) -> "list[str]":
        """The lines of this start's log that have all these words."""
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return [line for line in log if all(word in line for word in words)]

    def wait_lines(self, count: int, *words: str, seconds: float = 60) -> "list[str]":
        deadline = time.monotonic() + seconds
        while len(found := self.lines(*words)) < count:
            assert time.monotonic() < deadline, f"{self.name}: {len(found)} of {count} lines {words} after {seconds} s: {self.tail()}"
            time.sleep(0.02)
        return found

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as reply:
            for line in reply.read().decode().splitlines():
                if line.startswith(name + "{"):
                    return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"{self.name} has no metric {name}")

    def tail(self) -> str:
        return "\n" + "".join(self.lines()[-30:])
