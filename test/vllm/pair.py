"""A prefill and a decode server, and the router between them: what a client asks, and the pull that follows."""

import contextlib
import http.client
import json
import random
import re
import threading
import time
from pathlib import Path
from typing import Iterator

from model import TOKEN_BYTES
from servers import Server, Way

BLOCK = 128  # tokens: vLLM's default on processors
NEW_TOKENS = 16
POSTED = ("calling _read_blocks", "for req cmpl-")  # without cmpl: the notification of an aborted request
REQUEST = 120  # seconds. vLLM's idle worker may miss a wake-up, and then takes 5 s a step


def kv_bytes(prompt: "list[int]") -> int:
    """Bytes of a prompt's KV: whole blocks."""
    return -(-len(prompt) // BLOCK) * BLOCK * TOKEN_BYTES


class Call(threading.Thread):
    """A completion in a thread of its own. It ends with tokens, or with why there are none."""

    def __init__(self, server: Server, prompt: "list[int]", params: "dict[str, object] | None" = None, tokens: int = NEW_TOKENS, number: str = ""):
        super().__init__(daemon=True)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        self.body = json.dumps(body | ({"kv_transfer_params": params} if params else {}))
        self.headers = {"Content-Type": "application/json"} | ({"X-Request-Id": number} if number else {})
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=REQUEST)
        self.tokens: "list[int]" = []
        self.params: "dict[str, object]" = {}
        self.error = ""
        self.start()

    def run(self) -> None:
        try:
            self.connection.request("POST", "/v1/completions", self.body, self.headers)
            response = self.connection.getresponse()
            text = response.read().decode()
            if response.status != 200:
                self.error = f"{response.status}: {text}"
                return
            reply = json.loads(text)
            self.tokens = reply["choices"][0]["token_ids"]
            self.params = reply.get("kv_transfer_params") or {}
        except Exception as e:  # the test says which errors it allows
            self.error = repr(e)

    def abort(self) -> None:
        """Hangs up, as a client that goes away."""
        if self.connection.sock:
            self.connection.sock.shutdown(2)

    def result(self) -> "Call":
        self.join(REQUEST + 10)
        assert not self.is_alive(), f"no answer in {REQUEST} s: {self.body[:200]}"
        return self

    def good(self) -> "Call":
        self.result()
        assert not self.error, self.error
        return self


class Pair:
    def __init__(self, prefill: Server, decode: Server):
        self.prefill, self.decode, self.way = prefill, decode, prefill.way
        self.requests = 0

    def alone(self, prompt: "list[int]", tokens: int = NEW_TOKENS) -> "list[int]":
        """What one server answers that does everything itself."""
        return Call(self.prefill, prompt, tokens=tokens).good().tokens

    def prefilled(self, prompt: "list[int]", number: str = "") -> "dict[str, object]":
        """The prefill server computes the prompt and keeps its KV. The answer tells the decode server where to pull."""
        params = Call(self.prefill, prompt, {"do_remote_decode": True, "do_remote_prefill": False}, 1, number).good().params
        assert params["do_remote_prefill"] and params["remote_block_ids"], params
        return params

    def asked(self, prompt: "list[int]") -> Call:
        """A request to both servers, under one number: a push goes to the request of the same number."""
        self.requests += 1
        number = f"{self.prefill.name}-{self.decode.name}-{self.requests}"
        return Call(self.decode, prompt, self.prefilled(prompt, number), number=number)

    def both(self, prompt: "list[int]") -> "list[int]":
        return self.asked(prompt).good().tokens

    def meet(self) -> None:
        """The servers' first request. On a starved host vLLM's own handshake, which waits 5 s, may need several."""
        prompt = list(range(3, 23))
        for _ in range(6):
            late = len(self.decode.lines("zmq.error.Again"))
            call = self.asked(prompt).result()
            if not call.error:
                return
            assert len(self.decode.lines("zmq.error.Again")) > late, call.error
        raise AssertionError(f"vLLM's handshake took more than 5 s six times: {call.error}")

    @property
    def mover(self) -> Server:
        """The server that posts: decode READs, or prefill WRITEs."""
        return self.prefill if self.way.push else self.decode

    @property
    def ended(self) -> "tuple[str, str]":
        return 'msg="transfer ended"', "op=WRITE" if self.way.push else "op=READ"

    def moved(self) -> "list[tuple[int, str, str]]":
        """Transfers of KV that the mover's plugin has ended: bytes, status, rails."""
        found = []
        for line in self.mover.lines(*self.ended):
            m = re.search(r"bytes=(\d+) status=(\w+) .*paths=\"?\[([^\]]*)\]", line)
            assert m, line
            found.append((int(m[1]), m[2], m[3]))
        return found

    def started_pulls(self) -> int:
        return len(self.decode.lines(*POSTED))

    def wait_pulls(self, count: int) -> None:
        """Waits until vLLM's worker has posted so many READs."""
        self.decode.wait_lines(count, *POSTED)

    def wait_moved(self, count: int) -> None:
        """Waits until the mover's plugin has ended so many transfers."""
        self.mover.wait_lines(count, *self.ended)

    def wait_idle(self, seconds: float = 120) -> None:
        """Both servers have given back all KV blocks: those of lost requests after their lease of 30 s."""
        deadline = time.monotonic() + seconds
        for server in (self.prefill, self.decode):
            while used := server.metric("vllm:kv_cache_usage_perc"):
                assert time.monotonic() < deadline, f"{server.name} still holds {used:.4%} of its KV blocks after {seconds} s"
                time.sleep(0.5)


@contextlib.contextmanager
def started(folder: Path, model: str, way: Way) -> "Iterator[Pair]":
    """A pair of servers that has served a request. Both end with the block."""
    both = Pair(Server("prefill", "kv_producer", folder, model, way), Server("decode", "kv_consumer", folder, model, way))
    servers = (both.prefill, both.decode)
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.ready()
        both.meet()
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
