#!/usr/bin/env python3
"""What the work of a GPU sees after a transfer, and what must be quiet before one: the rules of docs/gpu.md, "What is visible when".

    python test/gpu/visible.py [--backend GORAIL] [--rounds 20] [--json FILE]     # two processes, on two GPUs if there are two

Needs a GPU, torch and NIXL's wheel, and says so loudly if one is missing. NIXL_PLUGIN_DIR is a folder with the plugin (default: as package
nixl_gorail finds it). `--device numpy` goes through the same rounds in host memory, where no rule can be broken, without torch.

The owner gives a buffer a new value, and one process moves it: the seer by a READ, or the owner by a WRITE with a notification. The seer's own buffer was
written by a kernel before. It waits for DONE or for the notification, and for nothing else. It then starts work that counts wrong numbers. Cases
that break a rule must show old numbers: otherwise this test could not tell. The others run again with CUDA_LAUNCH_BLOCKING=1.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))

from nixl_gorail.examples import group  # noqa: E402

COUNT, SLEEP = 1 << 20, 50_000_000  # numbers of four bytes; cycles, some 25 ms: a kernel that has not ended when the next call comes
SAFE = "the stream's synchronize"

# Name: how the operation is moved, where the seer looks, what the owner waits for, and whether old numbers must show.
SEEN = {f"{op}, seen {where}": (op, where, SAFE, False)
        for op in ("READ", "WRITE") for where in ("on the default stream", "on another stream", "by a graph that is replayed", "in a green context")}
QUIET = {f"{op}, after {wait}": (op, "on the default stream", wait, False)
         for op in ("READ", "WRITE") for wait in (SAFE, "an event's synchronize", "a synchronize of its GPU", "a copy of it to the host")}
BROKEN = {f"{op}, after {wait}": (op, "on the default stream", wait, True)
          for op in ("READ", "WRITE") for wait in ("no wait", "a synchronize of another GPU")}
CAPTURES = ("relaxed", "thread_local", "global")


class Host:
    """Both roles with numpy."""

    def __init__(self, member):
        self.numbers = member.zeros(COUNT, "int32")

    def expect(self, value):
        self.want = value

    def write(self, value, wait):
        self.numbers[:] = value

    def wrong(self, where):
        return int((self.numbers != self.want).sum())

    def spoil(self):
        self.numbers[:] = -1

    def missing(self, where, wait):
        return "" if where == "on the default stream" and wait == SAFE else "needs a GPU"


class GPU(Host):
    """Both roles with torch."""

    def __init__(self, member):
        import torch
        super().__init__(member)
        self.torch, self.device = torch, self.numbers.device
        self.side, self.other, self.busy = (torch.cuda.Stream(self.device) for _ in range(3))
        self.want, self.out = torch.zeros(1, dtype=torch.int32, device=self.device), torch.zeros((), dtype=torch.int64, device=self.device)
        self.noise, self.tally = torch.zeros(COUNT, device=self.device), torch.zeros(COUNT, device=self.device)
        self.context = None
        self.count()  # what torch makes at the first use must not be made in a capture
        torch.cuda.synchronize(self.device)
        self.look, self.beside = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.look):
            self.count()
        with torch.cuda.graph(self.beside):
            self.noise.add_(1)
            torch.cuda._sleep(SLEEP // 100)

    def count(self):
        self.out.copy_((self.numbers != self.want).sum())

    def expect(self, value):
        self.want.fill_(value)
        self.torch.cuda.synchronize(self.device)
        with self.torch.cuda.stream(self.busy):  # replays are in progress while the transfer is
            for _ in range(150):
                self.beside.replay()

    def write(self, value, wait):
        """A slow kernel, and then one that writes. wait is all that comes between them and the transfer."""
        cuda = self.torch.cuda
        cuda.synchronize(self.device)
        with cuda.stream(self.side):
            cuda._sleep(SLEEP)
            self.numbers.fill_(value)
            event = self.side.record_event()
            if wait == "a copy of it to the host":  # on the same stream
                self.numbers[:1].cpu()
        if wait == SAFE:
            self.side.synchronize()
        elif wait == "an event's synchronize":
            event.synchronize()
        elif wait == "a synchronize of its GPU":
            cuda.synchronize(self.device)
        elif wait == "a synchronize of another GPU":
            cuda.synchronize((self.device.index + 1) % cuda.device_count())

    def spoil(self):
        self.write(-1, SAFE)

    def wrong(self, where):
        with contextlib.ExitStack() as stack:
            if where == "on another stream":
                stack.enter_context(self.torch.cuda.stream(self.other))
            elif where == "in a green context":
                stack.enter_context(self.green())
            if where == "by a graph that is replayed":
                self.look.replay()
            else:
                self.count()
            return int(self.out.cpu())  # on the current stream, behind the count

    @contextlib.contextmanager
    def green(self):
        from torch.cuda.green_contexts import GreenContext
        context = self.context = self.context or GreenContext.create(16, self.device.index)
        getattr(context, "set_context" if hasattr(context, "set_context") else "make_current")()  # by the release of torch
        yield
        getattr(context, "pop_context" if hasattr(context, "pop_context") else "pop_current")()

    def missing(self, where, wait):
        if wait == "a synchronize of another GPU" and self.torch.cuda.device_count() < 2:
            return "there is one GPU"
        if where == "in a green context":
            try:
                with self.green():
                    return ""
            except (ImportError, AttributeError, RuntimeError) as error:
                return f"torch or the driver has none: {error}"
        return ""


def move(member, request, word=b""):
    member.start(request, word)
    member.finish()  # DONE


def captured(member, side, request, mode):
    """A READ while this thread captures a graph: by this thread, or by another unless the mode is relaxed. Returns what is wrong."""
    cuda, graph, errors = side.torch.cuda, side.torch.cuda.CUDAGraph(), []

    def read():
        try:
            move(member, request)
        except Exception as error:
            errors.append(str(error))

    side.tally.zero_()
    try:
        with cuda.graph(graph, capture_error_mode=mode):
            side.tally.add_(1)
            thread = threading.Thread(target=read)
            if mode == "relaxed":
                read()
            else:
                thread.start()
                thread.join()
            side.tally.add_(1)
        graph.replay()
    except RuntimeError as error:
        errors.append(str(error).splitlines()[0])
    member.finish()
    wrong = side.wrong("on the default stream")
    if not errors and (wrong or int((side.tally != 2).sum().cpu())):
        errors.append(f"{wrong} numbers are wrong, or the graph lacks a kernel")
    return "; ".join(errors)


def program(member, args):
    side, seer, results, value = Host(member) if args.device == "numpy" else GPU(member), member.name == "seer", {}, 0
    there = member.meet(group.described(side.numbers))
    peer = member.peers[0]
    request = member.prepare("READ" if seer else "WRITE", group.described(side.numbers), peer, there[peer])
    for name, (op, where, wait, broken) in args.cases.items():
        missing = next(filter(None, member.gather(side.missing(where, wait)).values()), "")
        if missing:
            results[name] = f"skipped: {missing}"
            continue
        old = 0
        for _ in range(args.rounds):
            value += 1
            if seer:
                side.spoil()
                side.expect(value)
                member.gather()  # the owner may write
            else:
                member.gather()
                side.write(value, wait)
                if op == "WRITE":
                    move(member, request, b"%d" % value)
            if op == "READ":
                member.gather()  # the owner has written, as far as its wait says
            if seer:
                move(member, request) if op == "READ" else member.expect(peer, b"%d" % value)
                old += side.wrong(where) > 0
            member.gather()
        results[name] = ("as expected: " if (old > 0) == broken else "WRONG: ") + f"old numbers in {old} of {args.rounds} rounds"
    for mode in args.captures:
        value += 1
        side.expect(value) if seer else side.write(value, SAFE)
        member.gather()
        if seer:
            why = captured(member, side, request, mode)
            results[f"READ, in a capture of mode {mode}"] = f"WRONG: {why}" if why else "as expected: the graph and the numbers are right"
        member.gather()
    member.release(request)
    return results


def no_gpu():
    try:
        import torch
        return "" if torch.cuda.is_available() else "torch sees no GPU"
    except ImportError as error:
        return str(error)


def main():
    options = group.parser(__doc__)
    options.set_defaults(device="cuda")
    options.add_argument("--rounds", type=group.positive, default=20)
    if not any(a.startswith("--device") for a in sys.argv[1:]) and (why := no_gpu()):
        text = f"NOTHING WAS TESTED: {why}. This test needs a GPU and torch; --device numpy shows that its rounds work"
        sys.exit(text if os.environ.get("CI") else print("SKIPPED,", text))
    args, failed, everything = group.parse(options, lambda args: ["seer", "owner"]), 0, {}
    for blocking in ("0",) if args.device == "numpy" else ("0", "1"):
        os.environ["CUDA_LAUNCH_BLOCKING"] = blocking
        args.cases = SEEN | QUIET | (BROKEN if blocking == "0" else {})
        args.captures = CAPTURES if args.device != "numpy" and blocking == "0" else ()
        results = group.launch(program, args)["seer"]
        for name, result in results.items():
            failed += result.startswith("WRONG")
            print(f"{'CUDA_LAUNCH_BLOCKING=1, ' if blocking == '1' else ''}{name}: {result}")
        everything[blocking] = results
    group.write_json(args, everything)
    sys.exit(f"{failed} cases are wrong" if failed else 0)


if __name__ == "__main__":
    main()
