"""Real vLLM on two GPUs, prefill on the first and decode on the second, its KV over GORAIL and over NIXL's UCX: tokens, times, memory.

Run it by tools/vllm-gpu.sh, with the Python that has vLLM 0.26 or newer. Each row of the table is one pair of servers. Its answers
are compared with those of decode of the first pair, when it does everything itself. Without GPUs, --device cpu tries the program with vLLM for processors.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from load import Answer, Verdict, alone, compare, prompts, quantile, several, session, through  # noqa: E402
from places import Place, Walls, here  # noqa: E402
from server import Backend, Server, Setup, end_all  # noqa: E402

CASES = ["host", "tcp", "pods", "slept", "expandable"]  # and anew, wire
TCP = {"GORAIL_PROVIDER": "tcp", "UCX_TLS": "tcp,cuda_copy"}
TRACE = 4  # seconds
SETTLE = 2.5  # seconds until the connector's counters show the last transfers
BEGUN = time.monotonic()


@dataclass
class Row:
    """One pair of servers under one load. Times in ms, medians over the runs."""

    case: str
    backend: str
    tokens: Verdict = field(default_factory=Verdict)
    ttft50: float = 0
    ttft90: float = 0
    prompt_tokens: float = 0  # a second
    kv: float = 0
    rate: float = 0  # GB/s in transfers
    post: float = 0
    engine: "float | None" = None  # mean of transfers by GORAIL's own clock
    first: "float | None" = None  # decode's part of the pair's first request
    held: "int | None" = None  # MiB of the first GPU after prefill's end, or while it sleeps
    note: str = ""


def say(*words: object) -> None:
    print(f"[{time.monotonic() - BEGUN:6.1f}]", *words, flush=True)


class Run:
    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder, self.rows = options, folder, list[Row]()
        self.single = prompts(options.prompts, options.least, options.most, 7)
        self.model = str(folder / "model")
        self.expected: "list[Answer]" = []
        self.before = memory(options.device)

    # Servers.

    @contextmanager
    def pair(self, case: str, backend: Backend, places: "tuple[Place, Place] | None" = None, **setup: object) -> "Iterator[tuple[Server, Server]]":
        folder = self.folder / f"{case}-{backend.title}".replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        self.setup = Setup(folder, self.model, self.options.device, self.options.gpus, self.options.dtype, **setup)  # type: ignore[arg-type]
        at = places or (here(), here())
        try:
            mine = [Server(name, gpu, backend, self.setup, at[gpu]) for gpu, name in enumerate(("prefill", "decode"))]
            self.begun(case, backend, mine)
            yield mine[0], mine[1]
        finally:
            end_all()

    def begun(self, case: str, backend: Backend, pair: "list[Server]") -> None:
        say(f"{case}, {backend.title}: ready after", ", ".join(f"{s.ready():.0f} s" for s in pair))
        if not self.expected:
            self.expected = asyncio.run(self.answers(pair[1]))

    async def answers(self, server: Server) -> "list[Answer]":
        async with session() as s:
            got = await several(lambda p: alone(s, server, p), self.single, 1)
        if bad := [a.error for a in got if a.error]:
            raise RuntimeError(f"the server alone: {bad[0]}")
        return got

    # Loads.

    async def load(self, row: Row, p: Server, d: Server, at_once: int, runs: int) -> Row:
        """Runs the prompts a few times. A greater load gets them several times over."""
        repeat = max(1, at_once * 3 // len(self.single))
        asked, expected = self.single * repeat, self.expected * repeat
        poster = p if p.backend.pushes else d
        medians: "dict[str, list[float]]" = {}
        async with session() as s:
            for _ in range(runs):
                before, begun = await asyncio.to_thread(poster.metrics), time.monotonic()
                tracing = asyncio.create_task(asyncio.to_thread(poster.trace, TRACE))
                got = await several(lambda prompt: through(s, p, d, prompt), asked, at_once)
                took = time.monotonic() - begun
                traced = [float(str(t["end_us"])) - float(str(t["begin_us"])) for t in await tracing if t["op"] != "notification" and int(str(t["bytes"])) > 0]
                await asyncio.sleep(SETTLE)
                moved = await asyncio.to_thread(poster.metrics)
                row.tokens.add(compare(got, expected))
                first = [a.first * 1e3 for a in got if not a.error]
                for key, value in {**kv(before, moved), "ttft50": quantile(first, 0.5), "ttft90": quantile(first, 0.9), "prompt_tokens": sum(map(len, asked)) / took}.items():
                    medians.setdefault(key, []).append(value)
                if traced:
                    medians.setdefault("engine", []).append(statistics.mean(traced) / 1e3)
        for key, values in medians.items():
            setattr(row, key, statistics.median(values))
        return self.add(row)

    async def first(self, row: Row, p: Server, d: Server) -> None:
        async with session() as s:
            answer = await through(s, p, d, prompts(1, 1000, 1000, 98)[0])
        if answer.error:
            raise RuntimeError(f"the first request: {answer.error}")
        row.first = (answer.first - answer.prefilled) * 1e3

    def add(self, row: Row) -> Row:
        self.rows.append(row)
        say({k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(row).items() if v not in (None, 0, "")})
        Path(self.options.json).write_text(json.dumps([asdict(r) for r in self.rows], indent=1) + "\n", encoding="utf-8")
        return row

    def held(self) -> int:
        """What the first GPU holds beyond what it held before the program, two seconds after an end."""
        time.sleep(2)
        return memory(self.options.device) - self.before

    # Cases.

    def one(self, case: str, backend: Backend) -> None:
        try:
            getattr(self, case)(backend)
        except Exception as e:  # the other rows count as well
            self.add(Row(case, backend.title, note=f"failed: {' '.join(repr(e).split())}"[:400]))

    def host(self, backend: Backend) -> None:
        with self.pair("host", backend) as (p, d):
            for n, at_once in enumerate(self.options.at_once):
                row = Row(f"one host, {at_once} at once", backend.title)
                if n == 0:
                    asyncio.run(self.first(row, p, d))
                asyncio.run(self.load(row, p, d, at_once, self.options.runs))
            self.killed(backend, p, d)
            self.show(d)

    def anew(self, every: "list[Backend]") -> None:
        """Servers that were started anew differ more than the backends do. All start at once, and are loaded in turn: the others idle."""
        for start in range(self.options.starts):
            try:
                pairs = []
                for backend in every:
                    folder = self.folder / f"anew-{start}-{backend.title}".replace(" ", "-")
                    folder.mkdir(parents=True, exist_ok=True)
                    setup = Setup(folder, self.model, self.options.device, self.options.gpus, self.options.dtype)
                    pairs.append([Server(name, gpu, backend, setup, here()) for gpu, name in enumerate(("prefill", "decode"))])
                for backend, pair in zip(every, pairs):
                    self.begun(f"start {start + 1}", backend, pair)
                turn = start % len(every)
                for backend, (p, d) in (list(zip(every, pairs)) * 2)[turn:turn + len(every)]:
                    for n, at_once in enumerate(self.options.at_once):
                        row = Row(f"one host, {at_once} at once, started anew", backend.title)
                        if n == 0:
                            asyncio.run(self.first(row, p, d))
                        asyncio.run(self.load(row, p, d, at_once, self.options.runs))
            finally:
                end_all()

    def killed(self, backend: Backend, p: Server, d: Server) -> None:
        """Prefill is killed under load, and replaced. Requests of the killed one may fail."""
        row = Row("prefill killed and replaced", backend.title)

        async def under_load() -> "list[Answer]":
            async with session() as s:
                load = asyncio.create_task(several(lambda prompt: through(s, p, d, prompt), self.single * 3, 8))
                await asyncio.sleep(0.7)
                p.kill()
                return await load

        lost = asyncio.run(under_load())
        row.held = self.held()
        p2 = Server("prefill2", p.gpu, backend, self.setup, p.place)
        p2.ready()
        row.note = f"{sum(bool(a.error) for a in lost)} of {len(lost)} met the kill; {compare([a for a in lost if not a.error], [e for a, e in zip(lost, self.expected * 3) if not a.error]).wrong} wrong"
        asyncio.run(self.load(row, p2, d, 8, 1))
        p2.stop()
        self.add(Row("prefill stopped", backend.title, held=self.held()))

    def tcp(self, backend: Backend) -> None:
        with self.walls() as walls:
            places = (walls.host(0), walls.host(1)) if walls else None
            title = "two hosts, tcp" if walls and walls.network else "two boot ids, tcp over loopback" if walls else "tcp over loopback"
            with self.pair("tcp", backend, places, options=TCP) as (p, d):
                row = Row(f"{title}, 1 at once", backend.title)
                asyncio.run(self.first(row, p, d))
                asyncio.run(self.load(row, p, d, 1, self.options.runs))
                asyncio.run(self.load(Row(f"{title}, 8 at once", backend.title), p, d, 8, self.options.runs))
                self.show(d)

    def wire(self, backend: Backend) -> None:
        """Two hosts with a slow wire between them. GORAIL's three ways to compress."""
        title = f"a wire of {self.options.mbit / 1000:g} Gbit/s"
        with self.walls(self.options.mbit) as walls:
            if not walls or not walls.network:
                self.add(Row(title, backend.title, note="not run: no networks of their own here"))
                return
            for way in ["off", "on", "auto"] if backend.plugins == self.options.gorail else [""]:
                this = replace(backend, title=f"{backend.title}, compression {way}" if way else backend.title)
                with self.pair("wire", this, (walls.host(0), walls.host(1)), options={**TCP, "GORAIL_COMPRESSION": way or "off"}) as (p, d):
                    for at_once in self.options.at_once[:2]:
                        asyncio.run(self.load(Row(f"{title}, {at_once} at once", this.title), p, d, at_once, self.options.runs))
                    self.show(d)

    def pods(self, backend: Backend) -> None:
        with self.walls() as walls:
            if not walls:
                self.add(Row("two pods of a node", backend.title, note="not run: no namespaces here"))
                return
            with self.pair("pods", backend, (walls.pod(0), walls.pod(1))) as (p, d):
                row = Row("two pods of a node, 8 at once", backend.title)
                asyncio.run(self.first(row, p, d))
                asyncio.run(self.load(row, p, d, 8, self.options.runs))
                self.show(d)

    def slept(self, backend: Backend) -> None:
        """Prefill sleeps, its memory is unmapped, and made anew under the same addresses when it wakes."""
        with self.pair("slept", backend, arguments=["--enable-sleep-mode"]) as (p, d):
            asyncio.run(self.load(Row("before its sleep, 8 at once", backend.title), p, d, 8, 1))
            for level in (1, 2):
                row = Row(f"prefill slept, level {level}", backend.title)
                p.ask(f"sleep?level={level}")
                row.held = self.held()
                if level == 2:  # weights are dropped, and loaded again
                    p.ask("wake_up?tags=weights")
                    p.ask("collective_rpc", {"method": "reload_weights"})
                    p.ask("wake_up?tags=kv_cache")
                else:
                    p.ask("wake_up")
                asyncio.run(self.load(row, p, d, 8, 1))
            self.show(d)

    def expandable(self, backend: Backend) -> None:
        """vLLM refuses NixlConnector with expandable segments, unless its KV cache has an allocator of its own."""
        with self.pair("expandable", backend, arguments=["--enable-cumem-allocator"], options={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}) as (p, d):
            row = Row("expandable segments, 8 at once", backend.title)
            asyncio.run(self.first(row, p, d))
            asyncio.run(self.load(row, p, d, 8, self.options.runs))
            self.show(d)

    @contextmanager
    def walls(self, mbit: int = 0) -> "Iterator[Walls | None]":
        """None: this machine does not let us make namespaces."""
        w = Walls(mbit)
        try:
            w.__enter__()
        except (OSError, subprocess.CalledProcessError) as e:
            say("no namespaces here:", getattr(e, "stderr", "") or e)
            yield None
            return
        try:
            yield w
        finally:
            w.__exit__()

    def show(self, server: Server) -> None:
        for line in (server.lines("peer connected") + server.lines("level=WARN") + server.lines("GR-"))[:4]:
            say("   ", line[:400])


def kv(before: "dict[str, float]", after: "dict[str, float]") -> "dict[str, float]":
    """What vLLM says of the transfers between two looks."""

    def grown(name: str) -> float:
        return after.get(f"vllm:nixl_{name}", 0) - before.get(f"vllm:nixl_{name}", 0)

    count, seconds = grown("xfer_time_seconds_count"), grown("xfer_time_seconds_sum")
    if not count or not seconds:
        raise RuntimeError("vLLM counted no transfer")
    return {"kv": seconds / count * 1e3, "rate": grown("bytes_transferred_sum") / seconds / 1e9, "post": grown("post_time_seconds_sum") / count * 1e3}


def memory(device: str) -> int:
    """MiB in use of the first GPU."""
    if device != "cuda":
        return 0
    asked = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, check=True, capture_output=True, text=True, timeout=30).stdout)


def medians(rows: "list[Row]") -> "list[Row]":
    """One row of those of the same case and backend, with the range of TTFT's median in its note."""
    groups: "dict[tuple[str, str], list[Row]]" = {}
    for r in rows:
        groups.setdefault((r.case, r.backend), []).append(r)
    merged = []
    for same in groups.values():
        if len(same) == 1:
            merged += same
            continue
        one = replace(same[0], tokens=Verdict(), note=f"{len(same)} starts: TTFT p50 " + ", ".join(f"{r.ttft50:.0f}" for r in same))
        for r in same:
            one.tokens.add(r.tokens)
        for name in ("ttft50", "ttft90", "prompt_tokens", "kv", "rate", "post", "engine", "first", "held"):
            if values := [v for r in same if (v := getattr(r, name)) is not None]:
                setattr(one, name, statistics.median(values))
        merged.append(one)
    return merged


def table(rows: "list[Row]") -> str:
    """The rows as Markdown."""

    def number(v: "float | int | None", digits: int = 0) -> str:
        return "" if v is None else f"{v:,.{digits}f}"

    lines = ["| case | backend | tokens equal, near, wrong; failed | TTFT p50, p90 ms | prompt tokens/s | KV mean ms, GB/s | post ms | by GORAIL's clock | first ms | held MiB | |", "|---" * 11 + "|"]
    for r in medians(rows):
        t = r.tokens
        lines.append(f"| {r.case} | {r.backend} | {t.equal}, {t.near}, {t.wrong}; {t.failed} | {number(r.ttft50)}, {number(r.ttft90)} | {number(r.prompt_tokens)} | {number(r.kv, 2)}, {number(r.rate, 1)} "
                     f"| {number(r.post, 2)} | {number(r.engine, 2)} | {number(r.first)} | {number(r.held)} | {r.note} |")
    return "\n".join(lines)


def backends(options: argparse.Namespace) -> "list[Backend]":
    push = "NixlPushConnector"
    best = {"NIXL_UCX_SGL_ENABLE": "y"}
    every = [
        Backend("GORAIL", "GORAIL", options.gorail), Backend("UCX", "UCX", options.stock),
        Backend("GORAIL pushed", "GORAIL", options.gorail, connector=push), Backend("UCX at its best, pushed", "UCX", options.stock, best, push),
        Backend("GORAIL as UCX", "UCX", options.alias),
    ]
    return [b for name in options.backends for b in every if b.title == name and b.plugins]


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gorail", required=True, help="folder with libplugin_GORAIL.so")
    p.add_argument("--stock", default="", help="folder with NIXL's own plugins")
    p.add_argument("--alias", default="", help="folder with GORAIL under the name UCX")
    p.add_argument("--cases", nargs="+", default=CASES, choices=[*CASES, "anew", "wire"])
    p.add_argument("--backends", nargs="+", default=["GORAIL", "UCX"], choices=["GORAIL", "UCX", "GORAIL pushed", "UCX at its best, pushed", "GORAIL as UCX"])
    p.add_argument("--at_once", nargs="+", type=int, default=[1, 8, 32])
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--starts", type=int, default=3, help="of --cases anew: the servers of all backends are started so often, and loaded in turn")
    p.add_argument("--prompts", type=int, default=24)
    p.add_argument("--least", type=int, default=200, help="tokens of the shortest prompt")
    p.add_argument("--most", type=int, default=3000)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--gpus", type=int, default=2, help="1: prefill and decode share the first")
    p.add_argument("--dtype", default="float16", help="of weights and KV on GPUs")
    p.add_argument("--mbit", type=int, default=25000, help="of --cases wire, as root, with ip and tc")
    p.add_argument("--limit", type=float, default=3600, help="seconds: then the program ends with what it has")
    p.add_argument("--json", default="vllm-gpu.json")
    p.add_argument("--logs", default="", help="folder for the servers' logs")
    return p.parse_args()


def begin_limit(seconds: float) -> None:
    """From now on the limit, SIGTERM and a terminal that goes away end the program as Control-C does: servers and namespaces end with it."""

    def end(number: int, _: object) -> None:
        os.write(2, f"ended by {'the limit' if number == signal.SIGALRM else signal.Signals(number).name}\n".encode())
        sys.exit(3 if number == signal.SIGALRM else 4)

    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="gorail-vllm-") as scratch:
        run = Run(options, Path(options.logs or scratch).resolve())
        begin_limit(options.limit)
        shape = "kv8b" if options.device == "cuda" else "tiny"
        subprocess.run([sys.executable, str(Path(__file__).resolve().parents[3] / "test/vllm/model.py"), run.model, shape], check=True)
        try:
            for case in options.cases:
                if case == "anew":
                    run.anew(backends(options))
                    continue
                for backend in backends(options):
                    if not backend.pushes or case in ("host", "slept"):
                        run.one(case, backend)
        finally:
            print(table(run.rows), flush=True)
    bad = [r for r in run.rows if r.tokens.wrong or r.tokens.failed or r.note.startswith("failed")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
