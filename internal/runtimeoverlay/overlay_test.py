"""Run by TestOverlay, and by itself: python3 overlay_test.py GOROOT."""

import os
import subprocess
import sys
import tempfile
import unittest

import overlay

GOROOT = sys.argv.pop(1)


def source(name):
    with open(os.path.join(GOROOT, "src/runtime", name)) as f:
        return f.read()


class Overlay(unittest.TestCase):
    def test_changes(self):
        """The sources of this toolchain are as expected. The changed one is Go that gofmt leaves as it is, and differs only where it should."""
        overlay.check_table(source("sigtab_linux_generic.go"))
        src = source("signal_unix.go")
        out = overlay.change_signals(src)
        gofmt = subprocess.run([os.path.join(GOROOT, "bin/gofmt")], input=out, capture_output=True, text=True, check=True)
        self.assertEqual(gofmt.stdout, out)
        self.assertIn("case 7, 8, 11, 32, 33:\n", out)
        self.assertEqual(out.replace(overlay.FORGET, "").replace("\nvar preemptM", "\nconst preemptM"), src)

    def test_unexpected(self):
        """Another table is refused, with what is wrong."""
        src = source("sigtab_linux_generic.go")
        for want, old, new in (
            ("signal 11 has the flags _SigThrow", "/* 11 */ {_SigPanic", "/* 11 */ {_SigThrow"),
            ("the table has 64 entries", '\t/* 64 */ {_SigNotify, "signal 64"},\n', ""),
            ("follows 12", "/* 13 */", "/* 14 */"),
        ):
            self.assertIn(old, src)
            with self.assertRaisesRegex(overlay.Unexpected, want):
                overlay.check_table(src.replace(old, new))
        with self.assertRaisesRegex(overlay.Unexpected, "0 parts are 'const preemptMSupported"):
            overlay.change_signals("")
        with self.assertRaisesRegex(overlay.Unexpected, r"0 parts are 'if \(isarchive \|\| islibrary\)"):
            overlay.change_signals(overlay.PREEMPTS)

    def test_outside(self):
        """A toolchain in the module cache is reached by a link."""
        with tempfile.TemporaryDirectory() as out:
            root = overlay.outside("/cache/toolchain", "/cache", out)
            self.assertEqual(root, os.path.join(out, "goroot"))
            self.assertEqual(os.readlink(root), "/cache/toolchain")
            self.assertEqual(overlay.outside("/cachet/toolchain", "/cache", out), "/cachet/toolchain")


if __name__ == "__main__":
    unittest.main()
