"""Starts and ends vLLM servers on GPUs, each in a process group of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from places import HOST, Place

SERVERS: "list[Server]" = []  # that were begun and not killed
START = 300  # seconds
STOP = 25

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # sleep and wake_up
    "VLLM_LOG_STATS_INTERVAL": "2", "VLLM_USE_DEEP_GEMM": "0", "VLLM_DEEP_GEMM_WARMUP": "skip", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "OMP_NUM_THREADS": "4", "GORAIL_LOG": "info", "GORAIL_XFER_TIMEOUT": "20s",
}


@dataclass
class Backend:
    """A row's backend: its name for NIXL, the folder that has it, what it is told."""

    title: str
    name: str
    plugins: str
    options: "dict[str, str]" = field(default_factory=dict)
    connector: str = "NixlConnector"

    @property
    def pushes(self) -> bool:
        return "Push" in self.connector


@dataclass
class Setup:
    """What all servers of a case have."""

    folder: Path
    model: str
    device: str  # cuda or cpu
    gpus: int = 2  # 1: both servers share it
    dtype: str = "float16"
    arguments: "list[str]" = field(default_factory=list)
    options: "dict[str, str]" = field(default_factory=dict)


class Server:
    def __init__(self, name: str, gpu: int, backend: Backend, setup: Setup, place: Place):
        self.name, self.gpu, self.backend, self.setup, self.place = name, gpu, backend, setup, place
        self.port, self.side_port = free_port(), free_port()
        self.log = setup.folder / f"{name}.log"
        self.stats = setup.folder / f"stats-{name}"  # the folder of its sockets
        self.stats.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.begun = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                place.prefix + self.command(), env=self.environment(), cwd=setup.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            SERVERS.append(self)

    def command(self) -> "list[str]":
        transfer = {
            "kv_connector": self.backend.connector, "kv_role": "kv_both", "kv_buffer_device": self.setup.device, "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"backends": [self.backend.name]},
        }
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self.setup.model, "--served-model-name", "m", "--host", self.place.address, "--port", str(self.port),
            "--enforce-eager", "--no-enable-prefix-caching", "--shutdown-timeout", "10",
            "--disable-uvicorn-access-log", "--kv-transfer-config", json.dumps(transfer),
        ]
        if self.setup.device == "cuda":
            command += ["--dtype", self.setup.dtype, "--max-model-len", "8192", "--max-num-batched-tokens", "8192", "--block-size", "16", "--max-num-seqs", "64", "--gpu-memory-utilization", "0.2", "--kv-cache-memory-bytes", str(20 << 30),
                        "--attention-backend", "FLASH_ATTN"]
        else:
            command += ["--dtype", "float32", "--block-size", "32", "--max-num-seqs", "16", "--max-model-len", "2048"]
        return command + self.setup.arguments

    def environment(self) -> "dict[str, str]":
        env = {**os.environ, **ENVIRONMENT, "VLLM_HOST_IP": self.place.address, "VLLM_NIXL_SIDE_CHANNEL_HOST": self.place.address,
               "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port), "NIXL_PLUGIN_DIR": self.backend.plugins, "GORAIL_STATS_SOCKET": str(self.stats)}
        interface = "lo" if self.place.address == HOST else "eth0"
        env |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        if self.setup.device == "cuda":
            env["CUDA_VISIBLE_DEVICES"] = str(self.gpu % self.setup.gpus)
        else:
            env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        return {**env, **self.setup.options, **self.backend.options}

    def url(self, path: str) -> str:
        return f"http://{self.place.address}:{self.port}/{path}"

    def ready(self) -> float:
        """Waits, and returns how many seconds the start took."""
        while (passed := time.monotonic() - self.begun) < START:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode} while it started: {self.errors()}")
            try:
                with urllib.request.urlopen(self.url("health"), timeout=2):
                    return passed
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"{self.name} is not ready after {START} s: {self.errors()}")

    def ask(self, path: str, body: "object | None" = None) -> None:
        """Posts to one of the server's paths for developers."""
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url(path), data, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def metrics(self) -> "dict[str, float]":
        """The sums over all labels."""
        sums: "dict[str, float]" = {}
        with urllib.request.urlopen(self.url("metrics"), timeout=20) as reply:
            for line in reply.read().decode().splitlines():
                if not line.startswith("#") and "_bucket" not in line:
                    key, value = line.rsplit(" ", 1)
                    key = key.split("{")[0]
                    sums[key] = sums.get(key, 0) + float(value)
        return sums

    def trace(self, seconds: float) -> "list[dict[str, object]]":
        """The transfers that its engines end in this time, by their own clock. Without GORAIL there are none."""
        found: "list[dict[str, object]]" = []
        sockets = []
        for path in self.stats.iterdir():
            s = socket.socket(socket.AF_UNIX)
            s.connect(str(path))
            s.sendall(f"trace {seconds:.1f}\n".encode())
            sockets.append(s)
        for s in sockets:
            with s, s.makefile("rb") as reply:
                found += json.load(reply)["transfers"]
        return found

    def stop(self) -> None:
        """Ends it as an operator does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(STOP)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        if self not in SERVERS:
            return  # its number may be another's by now
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        SERVERS.remove(self)

    def lines(self, *words: str) -> "list[str]":
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return [line.rstrip() for line in log if all(word in line for word in words)]

    def errors(self) -> str:
        lines = [line for line in self.lines() if "Error" in line or "ERROR" in line]
        return "\n".join((lines or self.lines())[-12:])


def end_all() -> None:
    while SERVERS:
        SERVERS[-1].kill()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])
