"""Two prefill and two decode servers under requests of all pairs: servers are killed and replaced, stand still, and clients hang up."""

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Iterator

import pytest
from pair import NEW_TOKENS, Call, Pair, prompts
from servers import Server, Way

PROMPTS = prompts(50, 100, 300, 700)


class Cluster:
    """Four servers. Each prefill server is in a pair with each decode server."""

    def __init__(self, folder: Path, model: str, way: Way):
        self.prefills = [Server(f"prefill-{i}", "kv_producer", folder, model, way) for i in range(2)]
        self.decodes = [Server(f"decode-{i}", "kv_consumer", folder, model, way) for i in range(2)]
        self.servers = self.prefills + self.decodes
        self.pairs = [Pair(p, d) for p, d in itertools.product(self.prefills, self.decodes)]

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.ready()
        for pair in self.pairs:
            pair.meet()
        self.right = [self.pairs[0].alone(p) for p in PROMPTS]


class Load:
    """Requests one after the other in each pair, each in a thread, until the end of a with block. Right or wrong, each is noted."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(pair,), daemon=True) for pair in cluster.pairs]
        self.good = {pair: 0 for pair in cluster.pairs}
        self.errors: "dict[Pair, list[str]]" = {pair: [] for pair in cluster.pairs}
        self.wrong: "list[str]" = []

    def run(self, pair: Pair) -> None:
        for turn in itertools.count():
            if self.stop.is_set():
                return
            which = turn % len(PROMPTS)
            try:
                call = pair.asked(PROMPTS[which]).result()
                error = call.error
            except AssertionError as e:  # the prefill server's answer
                error = str(e)
            if error:
                self.errors[pair].append(error)
                time.sleep(0.2)  # a server that is away refuses at once
            elif call.tokens != self.cluster.right[which]:
                self.wrong.append(f"{pair.prefill.name}, {pair.decode.name}: {call.tokens}, not {self.cluster.right[which]}")
            else:
                self.good[pair] += 1

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        self.more(self.cluster.pairs)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(300)

    def more(self, pairs: "list[Pair]", count: int = 2, seconds: float = 300) -> None:
        """Waits until each pair has answered so many more requests rightly."""
        until = {pair: self.good[pair] + count for pair in pairs}
        deadline = time.monotonic() + seconds
        while slow := [p for p in pairs if self.good[p] < until[p]]:
            assert time.monotonic() < deadline, [(p.prefill.name, p.decode.name, self.errors[p][-1:]) for p in slow]
            time.sleep(0.1)


@pytest.fixture(scope="module", params=["tcp", "sm"])
def cluster(request: pytest.FixtureRequest, model: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    all_of_it = Cluster(tmp_path_factory.mktemp("cluster-" + request.param), model, Way(request.param))
    try:
        all_of_it.start()
        yield all_of_it
    finally:
        for server in all_of_it.servers:
            server.kill()


def check(cluster: Cluster, load: Load, involved: "list[Server]") -> None:
    """No wrong tokens. Only requests that needed an involved server failed. Nobody but they was started anew."""
    assert not load.wrong, load.wrong
    for pair in cluster.pairs:
        if pair.prefill not in involved and pair.decode not in involved:
            assert not load.errors[pair], (pair.prefill.name, pair.decode.name, load.errors[pair])
    for server in cluster.servers:
        assert server.process and server.process.poll() is None, f"{server.name} has ended: {server.tail()}"
    for pair in cluster.pairs:
        pair.wait_idle()
        for prompt, right in zip(PROMPTS, cluster.right):
            assert pair.both(prompt) == right


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_killed(cluster: Cluster, role: str) -> None:
    """A server is killed among requests, and another one takes its place at its host and ports."""
    victim = cluster.prefills[0] if role == "prefill" else cluster.decodes[0]
    others = [p for p in cluster.pairs if victim not in (p.prefill, p.decode)]
    with Load(cluster) as load:
        victim.kill()
        load.more(others)
        victim.start()
        victim.ready()
        load.more(cluster.pairs)
    check(cluster, load, [victim])


def test_stopped(cluster: Cluster) -> None:
    """A prefill server stands still for nine seconds: it is late, and no request fails."""
    victim = cluster.prefills[1]
    with Load(cluster) as load:
        victim.stand_still()
        try:
            time.sleep(9)  # the length of the stop is the case
        finally:
            victim.go_on()
        load.more(cluster.pairs)
    check(cluster, load, [])


def test_hang_ups(cluster: Cluster) -> None:
    """Clients hang up at random moments of their requests. Others notice nothing, and all blocks come back."""
    rng = random.Random(51)
    with Load(cluster) as load:
        for pair in cluster.pairs * 3:
            call = Call(pair.decode, PROMPTS[2], pair.prefilled(PROMPTS[2]), 8 * NEW_TOKENS)
            time.sleep(rng.random())  # the moment is the case
            call.abort()
            call.result()
        load.more(cluster.pairs)
    check(cluster, load, [])
