"""What clients ask of a pair, what they get, and whether it is right."""

import asyncio
import json
import random
import time
import uuid
from dataclasses import dataclass, field

import aiohttp

from server import Server

VOCABULARY = 500  # of the smaller model
NEW = 16  # tokens of an answer
REQUEST = aiohttp.ClientTimeout(total=60)
FIRST_HALF = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}

NEAR = 0.05  # nats between the best two tokens: closer ones part by rounding, in a batch of another size
WRONG = 0.1  # nats: one wrong block of KV moves logprobs by 0.5 in this model, rounding by 0.004


@dataclass
class Answer:
    tokens: "list[int]" = field(default_factory=list)
    logprobs: "list[tuple[float, float]]" = field(default_factory=list)  # and how far the second best is
    prefilled: float = 0  # seconds
    first: float = 0
    error: str = ""


def prompts(count: int, least: int, most: int, seed: int) -> "list[list[int]]":
    r = random.Random(seed)
    return [[r.randrange(4, VOCABULARY) for _ in range(r.randint(least, most))] for _ in range(count)]


def body(prompt: "list[int]", tokens: int, params: "object | None", number: str) -> "dict[str, object]":
    b: "dict[str, object]" = {"model": "m", "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "temperature": 0, "ignore_eos": True,
                              "return_token_ids": True, "request_id": number}
    return b | ({"kv_transfer_params": params} if params else {})


async def streamed(session: aiohttp.ClientSession, server: Server, ask: "dict[str, object]", begun: float, answer: Answer) -> None:
    async with session.post(server.url("v1/completions"), json=ask | {"stream": True, "logprobs": 2}, timeout=REQUEST) as reply:
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {(await reply.text())[:300]}")
        async for raw in reply.content:
            line = raw.decode().strip()
            if not line.startswith("data:") or line == "data: [DONE]":
                continue
            said = json.loads(line[5:])
            if "error" in said:
                raise RuntimeError(str(said["error"])[:300])
            for choice in said.get("choices", []):
                if choice.get("token_ids"):
                    answer.first = answer.first or time.monotonic() - begun
                    answer.tokens += choice["token_ids"]
                logprobs = choice.get("logprobs") or {"token_logprobs": [], "top_logprobs": []}
                for own, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"]):
                    best = sorted(top.values(), reverse=True)
                    answer.logprobs.append((own, best[0] - best[1] if len(best) > 1 else 9.0))
    if not answer.tokens:
        raise RuntimeError("no token came")


async def alone(session: aiohttp.ClientSession, server: Server, prompt: "list[int]") -> Answer:
    answer = Answer()
    await streamed(session, server, body(prompt, NEW, None, uuid.uuid4().hex), time.monotonic(), answer)
    return answer


async def through(session: aiohttp.ClientSession, prefill: Server, decode: Server, prompt: "list[int]") -> Answer:
    """As a router does it. Both halves have one number: a push needs it."""
    number, begun, answer = uuid.uuid4().hex, time.monotonic(), Answer()
    async with session.post(prefill.url("v1/completions"), json=body(prompt, 1, FIRST_HALF, number), timeout=REQUEST) as reply:
        if reply.status != 200:
            raise RuntimeError(f"prefill: status {reply.status}: {(await reply.text())[:300]}")
        params = (await reply.json())["kv_transfer_params"]
    answer.prefilled = time.monotonic() - begun
    await streamed(session, decode, body(prompt, NEW, params, number), begun, answer)
    return answer


async def several(ask, what: "list[list[int]]", at_once: int) -> "list[Answer]":
    """The answers in the order of the prompts. A request that failed says why."""
    room = asyncio.Semaphore(at_once)

    async def one(prompt: "list[int]") -> Answer:
        async with room:
            try:
                return await ask(prompt)
            except Exception as e:  # the table counts them
                return Answer(error=repr(e))

    return list(await asyncio.gather(*[one(p) for p in what]))


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))


@dataclass
class Verdict:
    equal: int = 0
    near: int = 0
    wrong: int = 0
    failed: int = 0

    def add(self, other: "Verdict") -> None:
        self.equal, self.near = self.equal + other.equal, self.near + other.near
        self.wrong, self.failed = self.wrong + other.wrong, self.failed + other.failed


def compare(answers: "list[Answer]", expected: "list[Answer]") -> Verdict:
    v = Verdict()
    for got, want in zip(answers, expected):
        if got.error:
            v.failed += 1
            continue
        parted = next((i for i, (a, b) in enumerate(zip(got.tokens, want.tokens)) if a != b), len(want.tokens))
        apart = max([0.0] + [abs(a[0] - b[0]) for a, b in zip(got.logprobs[:parted], want.logprobs[:parted])])
        short = len(got.tokens) != len(want.tokens)
        if short or apart > WRONG or parted < len(want.tokens) and want.logprobs[parted][1] >= NEAR:
            v.wrong += 1
        elif parted < len(want.tokens):
            v.near += 1
        else:
            v.equal += 1
    return v


def quantile(values: "list[float]", q: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * q))]
