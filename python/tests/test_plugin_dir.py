"""plugin_dir: which NIXL, which folder, many processes, updates."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, PACKAGES, ROOT, link, torch

WHEELS = ROOT / ".cache" / "wheels"


def variant(folder):
    return re.search(r"nixl_(\w+)\.libs", os.readlink(folder / "libplugin_UCX.so")).group(1)


@pytest.mark.parametrize("wheels", [["nixl_cu12", "nixl_cu13"], ["nixl_cu12"], ["nixl_cu13"]])
@pytest.mark.parametrize("cuda", ["no torch", None, "12.8", "13.0", "11.8"])
def test_choice_is_nixls(environment, wheels, cuda):
    """NIXL's own package `nixl`, plugin_dir and `gorail plugins` choose the same wheel, or all refuse."""
    link(environment.site, "nixl", "nixl_meta_utils", "numpy", *wheels)
    if cuda != "no torch":
        torch(environment.site, cuda)
    installed = cuda == "no torch" or cuda is None or f"nixl_cu{cuda[:2]}" in wheels
    theirs, err = environment.run("-c", "import nixl; print(nixl._pkg.__name__)", fails=not installed)
    tool = [str(BUILD / "gorail"), "plugins", "--dir", str(environment.home / "d")]  # it asks python3, which sees the environment
    done = subprocess.run(tool, env=environment.env, capture_output=True, text=True, timeout=60)
    if installed:
        assert f"nixl_{variant(environment.plugin_dir())}" == theirs
        assert done.returncode == 0, done.stderr
        assert f"nixl_{variant(environment.home / 'd' / 'plugins')}" == theirs
        return
    assert f"nixl-cu{cuda[:2]} is not installed" in err
    if len(wheels) == 2:
        assert done.returncode != 0 and "torch is built for CUDA 11, and there are nixl-cu12 and nixl-cu13" in done.stderr
        _, err = environment.run("-c", "import nixl_gorail; nixl_gorail.plugin_dir()", fails=True)
        assert "GorailError: this environment is for CUDA 11, and nixl-cu11 is not installed, only nixl-cu13 and nixl-cu12" in err
    else:  # a program may still import the one wheel by its own name
        assert variant(environment.plugin_dir()) == wheels[0][5:]


def test_imported_packages_choose(both):
    """A torch or a wheel that is imported counts before what is on the disk."""
    torch(both.site, "13.0")
    say = "import nixl_gorail; print(nixl_gorail.plugin_dir())"
    out, _ = both.run("-c", f"import nixl_cu12; {say}")
    assert variant(Path(out)) == "cu12"
    out, _ = both.run("-c", f"import torch.version; torch.version.cuda = '12.4'; {say}")
    assert variant(Path(out)) == "cu12"
    out, _ = both.run("-c", say)
    assert variant(Path(out)) == "cu13"


def test_has_all_plugins(both):
    folder = both.plugin_dir()
    own = {p.name for p in (PACKAGES / "nixl_cu13.libs" / "nixl").iterdir()}
    assert any("telemetry_exporter" in name for name in own)
    assert {p.name for p in folder.iterdir()} == own | {"libplugin_GORAIL.so"}
    assert (folder / "libplugin_GORAIL.so").resolve() == (BUILD / "libplugin_GORAIL.so").resolve()
    assert all(p.exists() for p in folder.iterdir())


def test_many_processes(both):
    processes = [both.start("-c", "import nixl_gorail; print(nixl_gorail.plugin_dir())") for _ in range(16)]
    ends = [(p.communicate(timeout=120), p.returncode) for p in processes]
    assert {code for _, code in ends} == {0}, ends
    assert len({out for (out, _), _ in ends}) == 1
    assert len(list(both.cache.glob("nixl-gorail/*"))) == 1
    assert (Path(ends[0][0][0].strip()) / "libplugin_GORAIL.so").exists()


def test_follows_the_wheel(environment):
    """An update of the wheel in its place: the same folder has the new wheel's files."""
    def install(release):
        for path in environment.site.iterdir():
            path.unlink()
        link(environment.site, "nixl_cu12", of=WHEELS / release)

    install("1.0.0")
    folder = environment.plugin_dir()
    assert not (folder / "libplugin_INFINIA.so").exists()
    install("1.5.1")
    assert environment.plugin_dir() == folder
    assert (folder / "libplugin_INFINIA.so").exists()
    assert all(p.exists() for f in (folder, folder.parent) for p in f.iterdir())


def test_follows_the_plugin(both, tmp_path):
    """Another plugin has another folder. A process that uses the first keeps it."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "libplugin_GORAIL.so").symlink_to(BUILD / "libplugin_GORAIL.so")
    first, second = both.plugin_dir(), both.plugin_dir(GORAIL_PLUGIN_DIR=str(other))
    assert first != second
    assert os.readlink(second / "libplugin_GORAIL.so") == str(other / "libplugin_GORAIL.so")
    assert os.readlink(first / "libplugin_GORAIL.so") == str(BUILD / "libplugin_GORAIL.so")


def test_names(both):
    plain, named = both.plugin_dir(), both.plugin_dir(("UCX", "Mooncake"))
    assert plain != named
    assert named == both.plugin_dir(["Mooncake", "UCX"])
    for name in ("UCX", "Mooncake", "GORAIL"):
        assert (named / f"libplugin_{name}.so").resolve() == (BUILD / "libplugin_GORAIL.so").resolve()
    assert both.plugin_dir("UCX") == both.plugin_dir(["UCX"])


def test_stock_plugins_elsewhere(both, tmp_path):
    """NIXL_PLUGIN_DIR of Dynamo's images names the stock plugins. A child that inherits the made folder has the same."""
    plugins = tmp_path / "opt" / "plugins"
    plugins.mkdir(parents=True)
    for path in (PACKAGES / "nixl_cu12.libs" / "nixl").iterdir():
        (plugins / path.name).symlink_to(path)
    (tmp_path / "opt" / "libnixl.so").symlink_to(PACKAGES / ".nixl_cu12.mesonpy.libs" / "libnixl.so")
    folder = both.plugin_dir(NIXL_PLUGIN_DIR=str(plugins))
    assert os.readlink(folder / "libplugin_UCX.so") == str(plugins / "libplugin_UCX.so")
    assert os.readlink(folder.parent / "libnixl.so") == str(tmp_path / "opt" / "libnixl.so")
    assert both.plugin_dir(NIXL_PLUGIN_DIR=str(folder)) == folder


def test_own_folder_is_not_a_source(both):
    folder = both.plugin_dir()
    assert both.plugin_dir(NIXL_PLUGIN_DIR=str(folder)) == folder
    assert both.plugin_dir(NIXL_PLUGIN_DIR=str(BUILD)) == folder, "a folder with nothing but GORAIL"
    assert both.plugin_dir(NIXL_PLUGIN_DIR="/nonexistent") == folder


def test_no_nixl(environment):
    _, err = environment.run("-c", "import nixl_gorail; nixl_gorail.plugin_dir()", fails=True)
    assert "GorailError: no NIXL in this Python environment" in err and "pip install nixl" in err


def test_no_plugin(both, tmp_path):
    _, err = both.run("-c", "import nixl_gorail; nixl_gorail.plugin_dir()", fails=True, GORAIL_PLUGIN_DIR=str(tmp_path))
    assert f"GorailError: GORAIL_PLUGIN_DIR={tmp_path} names a folder without the plugin" in err


def test_bad_name(both):
    _, err = both.run("-c", "import nixl_gorail; nixl_gorail.plugin_dir('../UCX')", fails=True)
    assert 'GorailError: gorail: --as "../UCX": not a name of another backend' in err
