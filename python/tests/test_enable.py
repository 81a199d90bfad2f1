"""enable and the programs: real agents load what they say."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, link

AGENT = """
import os, sys
import nixl_gorail
path = nixl_gorail.enable(sys.argv[1:])
assert os.environ["NIXL_PLUGIN_DIR"] == path
from nixl._api import nixl_agent, nixl_agent_config
for backend in (sys.argv[1:] or ["GORAIL", "UCX", "POSIX"]):
    nixl_agent("a" + backend, nixl_agent_config(backends=[backend]))
print(sorted({line.split("/")[-1].strip() for line in open("/proc/self/maps") if "libplugin_" in line or "libucp" in line}), flush=True)
os._exit(0)  # stock UCX crashes in a destructor after all work is done
"""


def test_agents(both):
    """An agent finds GORAIL, and NIXL's own plugins with their libraries."""
    out, err = both.run("-c", AGENT)
    assert "libplugin_GORAIL.so" in out and "libplugin_UCX.so" in out and "libplugin_POSIX.so" in out and "libucp" in out
    lines = [line for line in err.splitlines() if line.startswith("nixl_gorail: ")]
    assert len(lines) == 1 and "NIXL_PLUGIN_DIR=" in lines[0] and "POSIX" in lines[0] and "nixl-cu13 in " in lines[0], err
    assert "without CUDA in this environment, NIXL takes it of cu13 and cu12" in lines[0]


def test_names(both):
    """A program that asks for UCX gets GORAIL, and no UCX."""
    out, err = both.run("-c", AGENT, "UCX")
    assert "libplugin_GORAIL.so" in out and "libucp" not in out
    assert "GORAIL as UCX" in err


def test_quiet(both):
    out, err = both.run("-c", "import nixl_gorail; nixl_gorail.enable(log=False)")
    assert (out, err) == ("", "")


def test_too_late(both):
    _, err = both.run("-c", "import nixl, nixl_gorail; nixl_gorail.enable()", fails=True)
    assert "GorailError: nixl_cu13 is already imported, and NIXL_PLUGIN_DIR is not set: call nixl_gorail.enable() before nixl is imported" in err
    twice = "import nixl_gorail as g; a = g.enable(); import nixl; b = g.enable(); assert a == b; g.enable('UCX')"
    _, err = both.run("-c", twice, fails=True)
    assert "GorailError: nixl_cu13 is already imported, and NIXL_PLUGIN_DIR is " in err and ", not " in err


def test_children_use_the_same_folder(both):
    say = "import nixl_gorail, subprocess, sys; print(nixl_gorail.enable('UCX'), flush=True);"
    out, _ = both.run("-c", f"{say} subprocess.run([sys.executable, '-S', '-c', {say!r}], check=True)")
    first, second = out.splitlines()
    assert first == second


def test_two_agents(both):
    out, err = both.run("-m", "nixl_gorail.two_agents", "--mib", "4", "--rounds", "2")
    assert "GORAIL: WRITE, READ and notification verified" in out
    assert err.count("nixl_gorail: NIXL_PLUGIN_DIR=") == 1


@pytest.mark.parametrize("wheel", ["nixl_cu12", "nixl_cu13"])
def test_two_agents_without_package_nixl(environment, wheel):
    link(environment.site, wheel, "numpy")
    out, _ = environment.run("-m", "nixl_gorail.two_agents", "--mib", "1", "--rounds", "1")
    assert "GORAIL: WRITE, READ and notification verified" in out


def test_example(both):
    """The program in examples/ runs without the package installed."""
    out, err = both.run(str(ROOT / "examples" / "two_agents.py"), "--mib", "1", "--rounds", "1", PYTHONPATH=str(both.site), NIXL_PLUGIN_DIR=str(BUILD))
    assert "GORAIL: WRITE, READ and notification verified" in out
    assert "nixl_gorail:" not in err


def test_version_of_the_source_tree(both):
    out, _ = both.run("-c", "import nixl_gorail; print(nixl_gorail.__version__)")
    assert out == (ROOT / "VERSION").read_text().strip()


@pytest.fixture
def installed(both):
    """The package as a wheel installs it, with its own plugin, tool and metadata."""
    package = both.site / "nixl_gorail"
    shutil.copytree(ROOT / "python" / "nixl_gorail", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder, file in (("lib", "libplugin_GORAIL.so"), ("bin", "gorail")):
        (package / folder).mkdir()
        shutil.copy2(BUILD / file, package / folder / file)
    info = both.site / "nixl_gorail-9.8.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nixl-gorail\nVersion: 9.8.7\n")
    scripts = (ROOT / "python" / "pyproject.toml").read_text().split("[project.scripts]\n")[1]
    (info / "entry_points.txt").write_text("[console_scripts]\n" + scripts.replace('"', ""))
    both.env["PYTHONPATH"] = str(both.site)
    del both.env["GORAIL_PLUGIN_DIR"]
    return both


SCRIPT = """
import sys
from importlib.metadata import distribution
name, sys.argv = sys.argv[1], sys.argv[1:]
[script] = [e for e in distribution("nixl-gorail").entry_points if e.name == name]
script.load()()
"""


def test_installed(installed):
    package = installed.site / "nixl_gorail"
    out, _ = installed.run("-c", "import nixl_gorail; print(nixl_gorail.__version__)")
    assert out == "9.8.7"
    folder = installed.plugin_dir()
    assert os.readlink(folder / "libplugin_GORAIL.so") == str(package / "lib" / "libplugin_GORAIL.so")
    out, _ = installed.run("-m", "nixl_gorail.two_agents", "--mib", "1", "--rounds", "1")
    assert "verified" in out


def test_scripts(installed, tmp_path):
    out, _ = installed.run("-c", SCRIPT, "gorail-env", "--as", "UCX,Mooncake")
    got = subprocess.run(["bash", "-c", f"{out}; echo $NIXL_PLUGIN_DIR"], capture_output=True, text=True, check=True).stdout.strip()
    assert shlex.split(out) == ["export", f"NIXL_PLUGIN_DIR={got}"]
    assert Path(got, "libplugin_Mooncake.so").exists()
    assert installed.plugin_dir(["UCX", "Mooncake"]) == Path(got)

    out, _ = installed.run("-c", SCRIPT, "gorail", "plugins", "--dir", str(tmp_path / "d"), "--wheel", str(installed.site), "--cuda", "12")
    assert out == f"export NIXL_PLUGIN_DIR={tmp_path / 'd' / 'plugins'}"
    assert os.readlink(tmp_path / "d" / "plugins" / "libplugin_GORAIL.so") == str(installed.site / "nixl_gorail" / "lib" / "libplugin_GORAIL.so")
    _, err = installed.run("-c", SCRIPT, "gorail", "no-such-command", fails=True)
    assert "no command" in err
    _, err = installed.run("-c", SCRIPT, "gorail-env", "--as", "a b", fails=True)
    assert err.startswith("gorail-env: gorail: --as")


def test_import_is_light(both):
    """import nixl_gorail imports neither NIXL nor torch nor numpy."""
    out, _ = both.run("-c", "import nixl_gorail, sys; print([m for m in sys.modules if m.split('.')[0].startswith(('nixl_cu', 'torch', 'numpy')) or m == 'nixl'])")
    assert out == "[]"
