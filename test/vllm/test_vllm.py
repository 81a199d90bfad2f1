"""vLLM's NixlConnector over GORAIL: a prefill server and a decode server pull KV over tcp, and over shared memory."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Iterator

import pytest
from pair import NEW_TOKENS, Call, Pair, check_works, kv_bytes, prompts, started
from servers import XFER_TIMEOUT, Server, Way

COUNT = 4  # requests that pull at once

WAYS = {fabric: Way(fabric) for fabric in ("tcp", "sm")}


@pytest.fixture(scope="module", params=list(WAYS))
def pair(request: pytest.FixtureRequest, model: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Pair]":
    with started(tmp_path_factory.mktemp(request.param), model, WAYS[request.param]) as both:
        yield both


@pytest.fixture(autouse=True)
def going_on(pair: Pair):
    """No test leaves the prefill server stopped for the next one."""
    yield
    pair.prefill.go_on()


def in_flight(pair: Pair, seed: int, tokens: int = NEW_TOKENS) -> "list[tuple[list[int], Call]]":
    """Requests that pull while all of the prefill server's processes are stopped."""
    wanted = prompts(seed, *range(300, 300 + COUNT))
    right = [pair.alone(p, tokens) for p in wanted]
    params = [pair.prefilled(p) for p in wanted]
    pulls, ended = pair.started_pulls(), len(pair.moved())
    pair.prefill.stand_still()
    calls = [Call(pair.decode, p, k, tokens) for p, k in zip(wanted, params)]
    pair.wait_pulls(pulls + COUNT)
    if pair.way.fabric == "sm":  # it needs nothing of the stopped processes
        pair.wait_moved(ended + COUNT)
    return list(zip(right, calls))


def check_outcome(calls: "list[tuple[list[int], Call]]", fail: bool) -> None:
    """All requests have the right tokens, or vLLM has answered all with an error."""
    for right, call in calls:
        call.result()
        if fail:
            assert call.error.startswith("500"), call.error or call.tokens
        else:
            assert not call.error, call.error
            assert call.tokens == right


def test_tokens(pair: Pair) -> None:
    """The decode server's tokens are those of one server, by KV that came over the rails asked for, and every byte is counted."""
    wanted = prompts(1, 17, 128, 129, 500, 1500)
    before = len(pair.moved())
    for prompt in wanted:
        assert pair.both(prompt) == pair.alone(prompt)
    reads = pair.moved()[before:]
    assert [r[:2] for r in reads] == [(kv_bytes(p), "NIXL_SUCCESS") for p in wanted]
    assert all(pair.way.fabric in r[2] for r in reads), reads


def test_router(pair: Pair) -> None:
    """The router of the examples gives a client the tokens of one server, also as a stream, and says what it lacks."""
    ports = [f"127.0.0.1:{server.port}" for server in (pair.prefill, pair.decode)]
    router = subprocess.Popen(
        [sys.executable, "-m", "nixl_gorail.examples.pd_router", "--prefill", ports[0], "--decode", ports[1], "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True,
    )
    try:
        assert router.stderr
        front = Server("router", "", pair.prefill.folder, "", pair.way)
        front.port = int(router.stderr.readline().rsplit(":", 1)[1])
        before = len(pair.moved())
        for prompt in prompts(7, 100, 700):
            assert Call(front, prompt).good().tokens == pair.alone(prompt)
        text = {}
        for stream in (False, True):
            body = {"model": "tiny", "prompt": prompts(8, 300)[0], "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "stream": stream}
            request = urllib.request.Request(f"http://127.0.0.1:{front.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=120) as reply:
                lines = [line.removeprefix(b"data: ").strip() for line in reply]
            text[stream] = "".join(json.loads(line)["choices"][0]["text"] for line in lines if line and line != b"[DONE]")
        assert text[False] == text[True] != ""
        assert len(pair.moved()) == before + 4, "each prompt's KV was pulled"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{front.port}/v1/completions", b"no JSON"), timeout=60)
        assert refused.value.code == 400
    finally:
        router.kill()
        router.wait()


def test_other_kv(pair: Pair) -> None:
    """KV of another prompt gives other tokens: equal tokens prove the KV."""
    mine, others = prompts(2, 200, 200)
    others[-1] = mine[-1]
    assert Call(pair.decode, mine, pair.prefilled(others)).good().tokens != pair.alone(mine)


def test_counters(pair: Pair) -> None:
    """A decode server that is closed has written its plugin's counters. Another one takes its place."""
    moved = sum(r[0] for r in pair.moved())
    pair.decode.close()
    counted = json.loads(pair.decode.stats.read_text())
    assert sum(r["bytes_read"] for r in counted["rails"]) == moved > 0
    assert {p["state"] for p in counted["peers"]} <= {"ready", "closed"}
    assert all(r["errors"] == 0 for r in counted["rails"])
    pair.decode.start()
    pair.decode.ready()
    pair.meet()
    check_works(pair, 3)


def test_aborted(pair: Pair) -> None:
    """Clients that go away while their KV is pulled harm no other request, and their blocks come back."""
    calls = in_flight(pair, 4, tokens=200)  # shared memory does not wait: the requests must last until the clients go
    for _, call in calls[:2]:
        call.abort()
    pair.decode.wait_lines(2, "request_finished(cmpl-", "FINISHED_ABORTED")
    pair.prefill.go_on()
    check_outcome(calls[2:], fail=False)
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
    pair.prefill.go_on()
    check_outcome(calls, fail=pair.way.fabric == "tcp" and seconds > XFER_TIMEOUT)
    check_works(pair, 200 + seconds)
    pair.wait_idle()


def test_killed(pair: Pair) -> None:
    """The prefill server dies while its KV is pulled, and comes back under its address."""
    calls = in_flight(pair, 6)
    pair.prefill.kill()
    check_outcome(calls, fail=pair.way.fabric == "tcp")
    if pair.way.fabric == "tcp":
        assert [r[1] for r in pair.moved()[-COUNT:]] == COUNT * ["NIXL_ERR_REMOTE_DISCONNECT"]
    pair.prefill.start()
    pair.prefill.ready()
    pair.meet()
    check_works(pair, 7)
    pair.wait_idle()


def test_recompute(pair: Pair) -> None:
    """With the policy recompute, no request fails at all when the prefill server dies."""
    if pair.way.fabric == "sm":
        pytest.skip("over shared memory no pull fails here: the KV has come before the kill")
    pair.decode.close()
    pair.decode.policy = "recompute"
    pair.decode.start()
    pair.decode.ready()
    pair.meet()
    check_works(pair, 8)
    calls = in_flight(pair, 9)
    pair.prefill.kill()
    check_outcome(calls, fail=False)
    assert [r[1] for r in pair.moved()[-COUNT:]] == COUNT * ["NIXL_ERR_REMOTE_DISCONNECT"]
