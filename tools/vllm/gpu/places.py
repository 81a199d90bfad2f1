"""Where a server runs: this host, another host's worth of walls, or a pod. The walls are namespaces that this program makes and ends."""

import os
import shutil
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
KINDS = ["--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]


@dataclass
class Place:
    """The command line that a server's own is appended to, and the address that it has there."""

    prefix: "list[str]"
    address: str


def here() -> Place:
    return Place([], HOST)


class Walls:
    """Namespaces for two servers, as root: two networks, joined by a pair of interfaces to this one each, if the machine has ip. mbit: what each may send a second."""

    def __init__(self, mbit: int = 0) -> None:
        self.mbit = mbit
        self.network = shutil.which("ip") is not None
        self.names = [f"gorail{os.getpid()}n{i}" for i in range(2)]
        self.folder = tempfile.TemporaryDirectory(prefix="gorail-walls-")
        self.forwarded = ""  # what the machine had, if we changed it

    def __enter__(self) -> "Walls":
        try:
            self.build()
        except BaseException:  # Control-C as well
            self.__exit__()
            raise
        return self

    def build(self) -> None:
        subprocess.run(["unshare", *KINDS, "true"], check=True, capture_output=True, text=True)
        if not self.network:
            return
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", f"{name[-11:]}a", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("addr", "add", f"10.203.{i}.1/24", "dev", f"{name[-11:]}a")
            ip("link", "set", f"{name[-11:]}a", "up")
            ip("-n", name, "addr", "add", f"10.203.{i}.2/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "route", "add", "default", "via", f"10.203.{i}.1")
            if self.mbit:  # a bucket of 4 ms, and a queue of 20
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{self.mbit}mbit", "burst", str(self.mbit * 500), "latency", "20ms"], check=True, capture_output=True, text=True)
        before = FORWARD.read_text()
        if before.strip() != "1":  # in a container it may be read-only
            FORWARD.write_text("1")
            self.forwarded = before

    def __exit__(self, *_: object) -> None:
        for name in self.names if self.network else ():
            for end in (["link", "del", f"{name[-11:]}a"], ["netns", "del", name]):  # a process that dies slowly keeps its network, and with it the name of ours
                subprocess.run(["ip", *end], check=False, capture_output=True)
        if self.forwarded:
            FORWARD.write_text(self.forwarded)
            self.forwarded = ""
        self.folder.cleanup()

    def host(self, i: int) -> Place:
        """Another host: network, shared memory, processes and the boot id are others."""
        boot = Path(self.folder.name, f"boot{i}")
        boot.write_text(f"{uuid.uuid4()}\n")
        return self.place(i, f"mount --bind {boot} /proc/sys/kernel/random/boot_id && ")

    def pod(self, i: int) -> Place:
        """A pod of this host."""
        return self.place(i, "")

    def place(self, i: int, also: str) -> Place:
        script = f'mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && {also}exec "$@"'
        command = ["unshare", *KINDS, "sh", "-c", script, "sh"]
        if not self.network:
            return Place(command, HOST)
        return Place(["ip", "netns", "exec", self.names[i], *command], f"10.203.{i}.2")


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)
