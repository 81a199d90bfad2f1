"""What gradient_sync.py, checkpoint.py and weights.py share: processes with an agent each, waits with an end, errors with names.

launch() starts the processes. They meet through pipes to it: gather() brings each one's metadata to all the others.
"""

import argparse
import collections
import contextlib
import importlib.util
import json
import multiprocessing as mp
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
import zlib

import numpy as np

from nixl_gorail import nixl_api
from nixl_gorail.examples import find_gorail

TIMEOUT = 60  # seconds, for every wait
GRACE = 3  # seconds for the others to report, after a process has died


def wait(what, done):
    deadline = time.monotonic() + TIMEOUT
    while not (result := done()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: nothing within {TIMEOUT} s")
        time.sleep(50e-6)
    return result


@contextlib.contextmanager
def during(what):
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{what}: {type(error).__name__}: {error}") from error


def described(array):
    """The kind of memory, and a list of its one region: (address, bytes, device)."""
    if isinstance(array, np.ndarray):
        return "DRAM", [(array.ctypes.data, array.nbytes, 0)]
    return "VRAM" if array.is_cuda else "DRAM", [(array.data_ptr(), array.numel() * array.element_size(), max(array.get_device(), 0))]


def within(memory, first, last):
    """The bytes from first to last of memory that is one region."""
    kind, [(start, size, device)] = memory
    assert 0 <= first <= last <= size, (first, last, size)
    return kind, [(start + first, last - first, device)]


def host(array):
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def checksum(array):
    return zlib.crc32(np.ascontiguousarray(host(array)))


def fill(array, contents):
    array[:] = contents if isinstance(array, np.ndarray) else array.new_tensor(contents)
    finish_gpu(array)


def finish_gpu(array):
    if described(array)[0] == "VRAM":  # NIXL does not wait for work that a GPU has queued. This does.
        array[:1].cpu()


class Member:
    """One process: its agent, and the calls that name the peer if they fail."""

    def __init__(self, pipe, name, args):
        self.pipe, self.name, self.names, self.backend, self.device, self.victim = pipe, name, args.names, args.backend, args.device, args.kill
        self.inbox, self.posted = collections.defaultdict(list), {}  # messages by sender; what each handle does
        if self.device.startswith("cuda"):
            import torch
            if self.device == "cuda":  # a GPU for each process, while there are some
                self.device = f"cuda:{args.names.index(name) % torch.cuda.device_count()}"
            torch.cuda.set_device(self.device)
        api = nixl_api()
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=[args.backend]))
        if args.backend not in self.agent.backends:
            raise RuntimeError(f"NIXL has no plugin {args.backend}. NIXL_PLUGIN_DIR={os.environ.get('NIXL_PLUGIN_DIR', '')} has "
                               + ", ".join(self.agent.get_plugin_list()))

    def zeros(self, count, dtype):
        """Registered memory of numpy or torch."""
        if self.device == "numpy":
            array = np.zeros(count, dtype)
        else:
            import torch
            array = torch.zeros(count, dtype=getattr(torch, dtype), device=self.device)
        kind, [region] = described(array)
        self.agent.register_memory([(*region, "")], kind, [self.backend])
        return array

    def gather(self, mine=None, word="gather"):
        """Returns what each process gave, by its name. It is a barrier, too."""
        self.pipe.send((word, mine))
        return self.pipe.recv()

    def meet(self, memory):
        """Loads the others' metadata. Returns each one's description of its memory."""
        everyone = self.gather((self.agent.get_agent_metadata(), memory))
        self.peers = [name for name in self.names if name != self.name]
        for name in self.peers:
            self.agent.add_remote_agent(everyone[name][0])
        return {name: theirs for name, (_, theirs) in everyone.items()}

    def prepare(self, operation, here, peer, there, backend=None):
        """A request that start() may post many times, one after the other."""
        what = f"{operation} to {peer}" if operation == "WRITE" else f"{operation} from {peer}"
        with during(what):
            local, remote = (self.agent.get_xfer_descs(regions, kind) for kind, regions in (here, there))
            return what, self.agent.initialize_xfer(operation, local, remote, peer, b"", [backend or self.backend])

    def start(self, request, message=b"", once=False):
        what, handle = request
        with during(what):
            self.agent.transfer(handle, message)
        self.posted[handle] = what, once
        return handle

    def post(self, operation, here, peer, there, message=b"", backend=None):
        """Starts a transfer. Its handle is in self.posted until it is done, and is released then."""
        return self.start(self.prepare(operation, here, peer, there, backend), message, once=True)

    def release(self, request):
        self.agent.release_xfer_handle(request[1])

    def progress(self):
        """Asks for the state of what is posted. Stock UCX sends a transfer's notification only if it is asked."""
        for handle, (what, once) in list(self.posted.items()):
            with during(what):
                if (state := self.agent.check_xfer_state(handle)) == "PROC":
                    continue
                del self.posted[handle]
                if once:
                    self.agent.release_xfer_handle(handle)
                if state != "DONE":
                    raise RuntimeError(f"ended as {state}")
        return not self.posted

    def finish(self):
        wait("the end of transfers", self.progress)

    def tell(self, peer, message):
        with during(f"notification to {peer}"):
            self.agent.send_notif(peer, message)

    def news(self):
        """Takes new notifications in. Returns all that nobody took yet, by sender."""
        self.progress()
        for sender, messages in self.agent.get_new_notifs([self.backend]).items():
            self.inbox[sender] += messages
        return self.inbox

    def expect(self, peer, message):
        wait(f"notification {message.decode()!r} of {peer}", lambda: message in self.news()[peer])
        self.inbox[peer].remove(message)

    def die_if_told(self, now=True):
        if now and self.name == self.victim:
            os.kill(os.getpid(), signal.SIGKILL)


def begin(program, pipe, name, args):
    try:
        member = Member(pipe, name, args)
        result = program(member, args)
        for peer in member.peers:
            member.agent.remove_remote_agent(peer)  # this delivers the last notifications
        member.gather(result, "end")
    except (EOFError, BrokenPipeError):
        sys.exit(f"{name}: the program that started this process has ended")
    except Exception as error:
        if not isinstance(error, (RuntimeError, OSError)):
            traceback.print_exc()
        pipe.send(("failed", str(error) or type(error).__name__))


def launch(program, args, **special):
    """Runs program(member, args), or the special program of that name, in a process for each of args.names.

    Returns what each returned, by name. If one dies or fails, all end, and so does this program.
    """
    find_gorail(args.backend)
    # spawn: a forked child could not use a plugin that its parent has loaded.
    context, names, processes, pipes = mp.get_context("spawn"), args.names, {}, {}
    try:
        for name in names:
            pipe, theirs = context.Pipe()
            pipes[pipe] = name
            processes[name] = context.Process(target=begin, args=(special.get(name, program), theirs, name, args), daemon=True)
            processes[name].start()
            theirs.close()  # if the process ends, our recv fails
        word = ""
        while word != "end":
            said = {}
            while len(said) < len(names):
                ready = multiprocessing.connection.wait(pipes, 5 * TIMEOUT)
                if not ready:
                    sys.exit(f"{sys.argv[0]}: no word of " + ", ".join(set(names) - set(said)))
                for pipe in ready:
                    word, value = receive(pipe)
                    if word in ("failed", "died"):
                        sys.exit(report(pipes, processes, {pipe: (word, value)}))
                    said[pipes[pipe]] = value
            for pipe in pipes:
                with contextlib.suppress(BrokenPipeError):  # the next wait sees that it has died
                    pipe.send(said)
        for process in processes.values():
            process.join(GRACE)
        return said
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def receive(pipe):
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return "died", None


def report(pipes, processes, troubles):
    """Waits GRACE for the others' own errors. Says what happened to each."""
    deadline = time.monotonic() + GRACE
    while (silent := [pipe for pipe in pipes if pipe not in troubles]) and (left := deadline - time.monotonic()) > 0:
        for pipe in multiprocessing.connection.wait(silent, left):
            if (message := receive(pipe))[0] in ("failed", "died"):
                troubles[pipe] = message
    lines = [f"{sys.argv[0]}: failed"]
    for pipe, (word, text) in sorted(troubles.items(), key=lambda trouble: trouble[1][0]):
        if word == "died":
            processes[pipes[pipe]].join(GRACE)
            code = processes[pipes[pipe]].exitcode or 0
            text = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        lines.append(f"  {pipes[pipe]}: {text}")
    return "\n".join(lines + [f"  {pipes[pipe]}: waited, and was ended by this program" for pipe in silent])


def positive(text):
    if (number := int(text)) < 1:
        raise ValueError
    return number


def parser(doc):
    """The options of all examples."""
    options = argparse.ArgumentParser(description=doc.splitlines()[0])
    options.add_argument("--backend", default="GORAIL", help="GORAIL, UCX or another network backend of NIXL")
    options.add_argument("--device", default="numpy", help="numpy, or a device of torch: cpu, cuda:0 for all processes, cuda: the GPUs in turn")
    options.add_argument("--json", metavar="FILE", help="write the results to this file")
    options.add_argument("--kill", metavar="NAME", help="this process is killed half-way, to show what the others report")
    return options


def parse(options, names):
    """names(args): the processes that there will be."""
    args = options.parse_args()
    if args.device != "numpy" and importlib.util.find_spec("torch") is None:
        options.error(f"--device {args.device} needs torch")
    args.names = names(args)
    if args.kill and args.kill not in args.names:
        options.error(f"--kill {args.kill}: the processes are {', '.join(args.names)}")
    if args.json:
        try:
            open(args.json, "a").close()
        except OSError as error:
            options.error(f"--json {args.json}: {error.strerror}")
    return args


def write_json(args, results):
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"example": os.path.basename(sys.argv[0]), **vars(args), "results": results}, file, indent=1)
