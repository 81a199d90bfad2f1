"""Writes the overlay (go build -overlay) with which the plugin's copy of Go's runtime is built, and prints the command that builds with it.

The overlay is made from the sources of the toolchain that builds:

- As a library, the runtime knows SIGBUS, SIGFPE, SIGSEGV and glibc's own two signals, and no others. It installs handlers for the first
  three only, and unblocks these five on its threads. The rest of the mask is that of the thread which loads the plugin, and the shim has
  blocked all there (cshim/host_signals.cpp).
- As a library, it preempts no goroutine by SIGURG.

A program is built with the same sources and keeps its signals, so that the tool shares compiled packages with the plugin.

If a source is not as expected, the script writes nothing and exits with an error: that version of Go has to be looked at first.

It is in Python, which meson needs anyway: in Go it took 26 s of processor time of each first build, because the standard library was
compiled once more for it.

Usage: overlay.py GO FOLDER. FOLDER must last until go build has ended.
"""

import json
import os
import re
import subprocess
import sys

# The entries of the table of signals that stay in a library, by number.
KEPT = {
    7: "_SigPanic + _SigUnblock",  # SIGBUS, SIGFPE and SIGSEGV: faults of Go code become panics
    8: "_SigPanic + _SigUnblock",
    11: "_SigPanic + _SigUnblock",
    32: "_SigSetStack + _SigUnblock",  # glibc's own, with which it cancels threads
    33: "_SigSetStack + _SigUnblock",  # and makes setuid reach all threads
}
SIGNALS = 65  # entries of the table, with 0

# What signal_unix.go has, and what it gets instead.
PREEMPTS = "\nconst preemptMSupported = true\n"
MAY_PREEMPT = "\nvar preemptMSupported = true\n"
EARLIER = "\tif (isarchive || islibrary) && !preinit {\n\t\treturn\n\t}\n\n"
INSTALLS = "\tfor i := uint32(0); i < _NSIG; i++ {\n"
# A library takes all other entries out of its table, before anything reads it.
FORGET = """\
	if isarchive || islibrary { // the host's signals are its own
		for i := range sigtable {
			switch i {
			case %s:
			default:
				sigtable[i].flags = 0
			}
		}
		preemptMSupported = false
	}

""" % ", ".join(map(str, sorted(KEPT)))


class Unexpected(Exception):
    """A source of the runtime is not the one that this script was written for."""


def check_table(src):
    """Returns the table of signals as it is, if it is the one that FORGET was written for."""
    entries = 0
    for number, flags in re.findall(r'(?m)^\t/\* (\d+) \*/ \{([^,]*), "', src):
        if int(number) != entries:
            raise Unexpected(f"entry {number} follows {entries - 1}")
        if flags != KEPT.get(entries, flags):
            raise Unexpected(f"signal {entries} has the flags {flags}, not {KEPT[entries]}")
        entries += 1
    if entries != SIGNALS:
        raise Unexpected(f"the table has {entries} entries, not {SIGNALS}")
    return src


def change_signals(src):
    """Returns signal_unix.go with the changes."""
    for part in PREEMPTS, EARLIER + INSTALLS:
        if src.count(part) != 1:
            raise Unexpected(f"{src.count(part)} parts are {part.strip()!r}, not one")
    return src.replace(PREEMPTS, MAY_PREEMPT).replace(EARLIER + INSTALLS, EARLIER + FORGET + INSTALLS)


# The files of package runtime that the overlay replaces, or only looks at: then they stay as they are.
CHANGES = {"sigtab_linux_generic.go": check_table, "signal_unix.go": change_signals}


def outside(root, cache, out):
    """Returns a path of the toolchain's root that is not below the module cache, where go build refuses to replace files. A toolchain that
    the go command has downloaded is there; it gets a symbolic link."""
    if not root.startswith(cache + os.sep):
        return root
    link = os.path.join(out, "goroot")
    if os.path.lexists(link):
        os.remove(link)
    os.symlink(root, link)
    return link


def write(go, out):
    """Writes the overlay for a go command to a folder. Returns the lines of a command: env, its settings, go, build, and the flag."""
    env = subprocess.run([go, "env", "GOROOT", "GOMODCACHE", "GOVERSION"], check=True, capture_output=True, text=True).stdout
    goroot, cache, version = env.splitlines()
    out = os.path.abspath(out)
    os.makedirs(out, exist_ok=True)
    root = outside(goroot, cache, out)
    replace = {}
    for name, change in CHANGES.items():
        source, changed = os.path.join(root, "src/runtime", name), os.path.join(out, name)
        with open(source) as f:
            src = f.read()
        try:
            src = change(src)
        except Unexpected as e:
            raise Unexpected(f"{source} of {version}: {e}. This version of Go may need other changes (internal/runtimeoverlay); build with another one")
        with open(changed, "w") as f:
            f.write(src)
        replace[source] = changed
    overlay = os.path.join(out, "overlay.json")
    with open(overlay, "w") as f:
        json.dump({"Replace": replace}, f)
    if root != goroot:  # the go command of another folder would go back to the cache
        go = os.path.join(root, "bin/go")
    return ["env", "GOROOT=" + root, "GOTOOLCHAIN=local", go, "build", "-overlay=" + overlay]


def main():
    try:
        print("\n".join(write(*sys.argv[1:])))
    except (Unexpected, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f"runtimeoverlay: {e}")


if __name__ == "__main__":
    main()
