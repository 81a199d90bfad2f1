"""Environments of real files: NIXL's wheels, linked into site-packages folders of our choice, and the built plugin."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("GORAIL_PLUGIN_DIR", ROOT / "build"))
PACKAGES = Path(sysconfig.get_paths()["platlib"])


def link(site, *names, of=PACKAGES):
    """Links packages into a site-packages folder, each with the folders that belong to it."""
    site.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = [p for p in (of / name, of / f"{name}.py", of / f"{name}.libs", of / f".{name}.mesonpy.libs") if p.exists()]
        assert found, f"{of} has no {name}: run tools/test-python.sh"
        for path in found:
            (site / path.name).symlink_to(path)


def torch(site, cuda):
    """The one file of torch that NIXL's package reads."""
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text(f"from typing import Optional\n__version__ = '2.9.0'\ncuda: Optional[str] = {cuda!r}\n")


class Environment:
    """A site-packages folder, a home, and an interpreter that sees only those."""

    def __init__(self, tmp):
        self.site = tmp / "site"
        self.cache = tmp / "cache"
        self.home = tmp / "home"
        self.temp = tmp / "temp"
        for folder in (self.site, self.home, self.temp):
            folder.mkdir()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.temp)}
        self.env.update(GORAIL_PLUGIN_DIR=str(BUILD), NIXL_LOG_LEVEL="WARN", PYTHONPATH=f"{ROOT / 'python'}:{self.site}")

    def start(self, *args, **env):
        # -S: without the test environment's own packages. -B: no files in the source tree.
        return subprocess.Popen([sys.executable, "-S", "-B", *args], env={**self.env, **env}, cwd=self.home, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *args, fails=False, **env):
        process = self.start(*args, **env)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"{args} hangs: {process.communicate()}")
        assert (process.returncode != 0) == fails, f"status {process.returncode}\n{out}\n{err}"
        return out.strip(), err.strip()

    def plugin_dir(self, names=(), **env):
        out, _ = self.run("-c", f"import nixl_gorail; print(nixl_gorail.plugin_dir({names!r}))", **env)
        return Path(out)


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


@pytest.fixture
def both(environment):
    """What `pip install nixl` brings."""
    link(environment.site, "nixl", "nixl_meta_utils", "nixl_cu12", "nixl_cu13", "numpy")
    return environment
