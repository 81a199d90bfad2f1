"""vLLM's NixlConnector over GORAIL: a prefill server and a decode server pull KV over tcp, and over shared memory."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pair import Call, Pair, pulled_bytes

XFER_TIMEOUT = 20  # seconds: longer than the stop of 10 s, shorter than vLLM's lease of 30 s

# By the fabric that the KV takes: GORAIL's options, and what vLLM does with a request whose pull failed.
# Without `provider`, two servers of one host take shared memory.
KINDS = {"tcp": ({"GORAIL_PROVIDER": "tcp"}, "fail"), "sm": ({}, "recompute")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("model"))
    subprocess.run([sys.executable, Path(__file__).parent / "model.py", folder], check=True, timeout=120)
    return folder


@pytest.fixture(scope="module", params=list(KINDS))
def pair(request: pytest.FixtureRequest, model: str, tmp_path_factory: pytest.TempPathFactory):
    options, policy = KINDS[request.param]
    options = {**options, "GORAIL_XFER_TIMEOUT": f"{XFER_TIMEOUT}s"}
    both = Pair(tmp_path_factory.mktemp(request.param), model, request.param, policy, options)
    servers = (both.prefill, both.decode)
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.ready()
        yield both
    finally:
        for server in servers:
            server.kill()


def prompts(seed: int, *lengths: int) -> "list[list[int]]":
    rng = random.Random(seed)
    return [[rng.randrange(3, 512) for _ in range(n)] for n in lengths]


def check_works(pair: Pair, seed: int) -> None:
    """No request fails, and the tokens are right."""
    for prompt in prompts(seed, 100, 700):
        assert pair.both(prompt) == pair.alone(prompt)


def in_flight(pair: Pair, seed: int, count: int = 4) -> "list[tuple[list[int], Call]]":
    """Requests that pull while all of the prefill server's processes are stopped."""
    wanted = prompts(seed, *range(300, 300 + count))
    right = [pair.alone(p) for p in wanted]
    params = [pair.prefilled(p) for p in wanted]
    before = pair.started_pulls()
    pair.prefill.signal(signal.SIGSTOP)
    calls = [Call(pair.decode, p, k) for p, k in zip(wanted, params)]
    pair.wait_pulls(before + count)
    return list(zip(right, calls))


def outcome(pair: Pair, calls: "list[tuple[list[int], Call]]") -> "list[str]":
    """The errors of the requests. The tokens of the others are right."""
    errors = []
    for right, call in calls:
        call.result()
        if call.error:
            errors.append(call.error)
        else:
            assert call.tokens == right
    print(f"{pair.kind}: {len(errors)} of {len(calls)} requests failed: {set(errors)}")
    return errors


def test_tokens(pair: Pair) -> None:
    """The decode server's tokens are those of one server, by KV that came over the rails asked for, and every byte is counted."""
    wanted = prompts(1, 17, 128, 129, 500, 1500)
    for prompt in wanted:
        assert pair.both(prompt) == pair.alone(prompt)
    reads = pair.reads()
    assert [r[:2] for r in reads] == [(pulled_bytes(p), "NIXL_SUCCESS") for p in wanted]
    assert all(pair.kind in r[2] for r in reads), reads


def test_other_kv(pair: Pair) -> None:
    """KV of another prompt gives other tokens: equal tokens prove the KV."""
    mine, others = prompts(2, 200, 200)
    others[-1] = mine[-1]
    assert Call(pair.decode, mine, pair.prefilled(others)).good().tokens != pair.alone(mine)


def test_counters(pair: Pair) -> None:
    """A decode server that is closed has written its plugin's counters. Another one takes its place."""
    moved = sum(r[0] for r in pair.reads())
    pair.decode.close()
    counted = json.loads(pair.decode.stats.read_text())
    assert sum(r["bytes_read"] for r in counted["rails"]) == moved > 0
    assert {p["state"] for p in counted["peers"]} <= {"ready", "closed"}
    assert all(r["errors"] == 0 for r in counted["rails"])
    pair.decode.start()
    pair.decode.ready()
    check_works(pair, 3)


def test_aborted(pair: Pair) -> None:
    """Clients that go away while their KV is pulled harm no other request, and their blocks come back."""
    calls = in_flight(pair, 4)
    for _, call in calls[:2]:
        call.abort()
    pair.decode.wait_lines(2, "request_finished(cmpl-", "FINISHED_ABORTED")
    pair.prefill.signal(signal.SIGCONT)
    assert not outcome(pair, calls[2:])
    for _, call in calls[:2]:
        assert call.result().error
    check_works(pair, 5)
    pair.wait_idle()


@pytest.mark.parametrize("seconds", [3, 10, 60])
def test_stopped(pair: Pair, seconds: int) -> None:
    """A prefill server that stands still. Requests wait for it for xfer_timeout; then vLLM's policy decides."""
    calls = in_flight(pair, 100 + seconds)
    time.sleep(seconds)  # the length of the stop is the case
    if seconds > 2 * XFER_TIMEOUT:
        assert not any(call.is_alive() for _, call in calls), "requests wait for a peer that stands still"
    pair.prefill.signal(signal.SIGCONT)
    errors = outcome(pair, calls)
    if seconds < XFER_TIMEOUT or not pair.fails:
        assert not errors
    check_works(pair, 200 + seconds)
    pair.wait_idle()


def test_killed(pair: Pair) -> None:
    """The prefill server dies while its KV is pulled, and comes back under its address."""
    calls = in_flight(pair, 6)
    pair.prefill.kill()
    errors = outcome(pair, calls)
    assert pair.fails or not errors
    assert all(e.startswith("500") for e in errors), errors
    if pair.kind == "tcp":  # shared memory has moved all before the kill
        assert [r[1] for r in pair.reads()[-4:]] == 4 * ["NIXL_ERR_REMOTE_DISCONNECT"]
    pair.prefill.start()
    pair.prefill.ready()
    check_works(pair, 7)
    pair.wait_idle()
