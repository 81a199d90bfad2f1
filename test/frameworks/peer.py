"""Starts and ends processes of a framework, and calls their functions."""

import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import nixl_gorail
from talk import MARK

LIMIT = 300  # seconds, for starved hosts: SGLang alone imports for half a minute
FOLDER = Path(__file__).parent


GIVEN: "set[int]" = set()


def free_port() -> int:
    """A port that the kernel gives to no other socket: it takes those from 32768 on. Another one in each call."""
    for port in random.SystemRandom().sample(range(20000, 32000), 100):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in GIVEN:
            GIVEN.add(port)
            return port
    raise AssertionError("100 of the ports 20000 to 31999 are in use")


class Peer:
    """A process that runs a program, with GORAIL's log and counters in files."""

    def __init__(self, folder: Path, name: str, program: "str | Path", args: "list[str]", options: "dict[str, str]", alias: "str | None" = None):
        self.name = name
        self.log, self.stats = folder / f"{name}.log", folder / f"{name}.json"
        env = {
            **os.environ,
            "GORAIL_LOG": "info",
            "GORAIL_XFER_TIMEOUT": "20s",
            "GORAIL_STATS_FILE": str(self.stats),
            "GORAIL_STATS_INTERVAL": "100ms",
            "NIXL_PLUGIN_DIR": nixl_gorail.plugin_dir([alias] if alias else []),
            **options,
        }
        env.pop("PYTHONPATH", None)
        # A program's name is one of this folder, a path an executable.
        command = [program] if isinstance(program, Path) else [sys.executable, "-B", FOLDER / program]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, *args], env=env, cwd=folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )
        self.answers: "queue.Queue[object]" = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(MARK):
                self.answers.put(json.loads(line[len(MARK):]))
        self.answers.put({"error": "the process has ended"})

    def _answer(self) -> object:
        try:
            value = self.answers.get(timeout=LIMIT)
        except queue.Empty:
            value = {"error": f"no answer in {LIMIT} s"}
        assert not (isinstance(value, dict) and "error" in value), f"{self.name}: {value['error']}\n{self.tail()}"
        return value

    def ready(self) -> "Peer":
        assert self._answer() == "ready"
        return self

    def post(self, name: str, *args: object) -> None:
        """Calls a function and does not wait."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps([name, args]) + "\n")
        self.process.stdin.flush()

    def result(self) -> object:
        value = self._answer()
        assert isinstance(value, dict)
        return value["value"]

    def call(self, name: str, *args: object) -> object:
        self.post(name, *args)
        return self.result()

    def failure(self) -> str:
        """Waits until the process has ended by itself with an error, and returns its log."""
        assert self.process.wait(LIMIT) != 0, "the process ended without an error"
        return self.log.read_text(errors="replace")

    def counters(self) -> "dict[str, object]":
        """What the plugin has counted until now. The plugin puts a new file in place each GORAIL_STATS_INTERVAL."""
        deadline, files = time.monotonic() + LIMIT, set()
        while len(files) < 3:  # the first may be older than this call, and the second begun before it
            assert time.monotonic() < deadline, f"{self.name}: the plugin wrote {len(files)} files of counters in {LIMIT} s"
            assert self.process.poll() is None, f"{self.name} has ended: {self.tail()}"
            if self.stats.exists():
                files.add(self.stats.stat().st_mtime_ns)
            time.sleep(0.02)
        return json.loads(self.stats.read_text())

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # ended before
        self.process.wait(LIMIT)

    def tail(self) -> str:
        return "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-40:])


def moved(counters: "dict[str, object]", counter: str) -> int:
    return sum(rail[counter] for rail in counters["rails"])  # type: ignore[attr-defined]


def fabrics(counters: "dict[str, object]", counter: str) -> "set[str]":
    """The fabrics whose rails carried bytes."""
    return {rail["fabric"] for rail in counters["rails"] if rail[counter]}  # type: ignore[attr-defined]
