"""A program that uses signals by a library of others, beside transfers.

argv[1] is the plugin, argv[2] the way: "uvloop" has children and an event loop, "plain" only transfers. argv[3]: seconds.
It prints "@busy", and at the end "@done TRANSFERS CHILDREN".
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import common

SIZE = 1 << 20


class Pair:
    def __init__(self):
        self.a, self.b = common.agent("alice"), common.agent("bob")
        self.here, mine = common.buffer(self.a, SIZE, 1)
        self.there, theirs = common.buffer(self.b, SIZE, 2)
        peer = self.a.add_remote_agent(self.b.get_agent_metadata())
        self.write = common.request(self.a, "WRITE", mine, theirs, peer)
        self.done = 0

    def turn(self):
        self.done += 1
        self.here[:] = self.done % 251
        state = common.finish(self.a, self.write, self.a.transfer(self.write))
        assert state == "DONE", state
        assert (self.there == self.done % 251).all(), "bytes differ"


def main():
    pair, end, children = Pair(), time.monotonic() + float(sys.argv[3]), 0
    print("@busy", flush=True)
    if sys.argv[2] == "uvloop":
        import asyncio

        import uvloop

        async def spawn():
            child = await asyncio.create_subprocess_exec("/bin/true")
            assert await asyncio.wait_for(child.wait(), 60) == 0

        async def run():
            nonlocal children
            while time.monotonic() < end:
                batch = [asyncio.create_task(spawn()) for _ in range(8)]
                for _ in range(8):
                    pair.turn()
                    await asyncio.sleep(0)
                await asyncio.gather(*batch)
                children += len(batch)

        uvloop.run(run())
    else:
        while time.monotonic() < end:
            pair.turn()
    print("@done", pair.done, children, flush=True)


main()
