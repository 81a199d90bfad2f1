"""The cache folder: nobody else may write where plugins are loaded from."""

import os
import stat

import pytest


def fallback(environment):
    return environment.temp / f"nixl-gorail-{os.geteuid()}"


def test_home(both):
    folder = both.plugin_dir(XDG_CACHE_HOME="")
    assert both.home / ".cache" / "nixl-gorail" in folder.parents
    assert both.home / ".cache" / "nixl-gorail" in both.plugin_dir(XDG_CACHE_HOME="relative").parents


def test_no_home(both):
    """A home that cannot be written: a private folder for temporary files."""
    file = both.home / "file"
    file.touch()
    folder = both.plugin_dir(XDG_CACHE_HOME="", HOME=str(file))
    assert fallback(both) in folder.parents
    assert stat.S_IMODE(fallback(both).stat().st_mode) == 0o700
    assert both.plugin_dir(XDG_CACHE_HOME="", HOME=str(file)) == folder


def test_cache_open_to_others(both):
    both.cache.mkdir()
    both.cache.chmod(0o777)
    assert fallback(both) in both.plugin_dir().parents
    both.cache.chmod(0o1777)
    assert both.cache in both.plugin_dir().parents
    (both.cache / "nixl-gorail").chmod(0o777)
    assert fallback(both) in both.plugin_dir().parents


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of other users")
def test_cache_of_another(both):
    both.cache.mkdir()
    os.chown(both.cache, 65534, 65534)
    assert fallback(both) in both.plugin_dir().parents


@pytest.mark.parametrize("how", ["link", "open", "another's"])
def test_attacked_fallback(both, tmp_path, how):
    """Somebody was there first: no plugin is loaded from that folder."""
    if how == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        fallback(both).symlink_to(tmp_path / "theirs")
    else:
        fallback(both).mkdir(mode=0o700)
        if how == "open":
            fallback(both).chmod(0o770)
        elif os.geteuid() != 0:
            pytest.skip("only root can make folders of other users")
        else:
            os.chown(fallback(both), 65534, 65534)
    _, err = both.run("-c", "import nixl_gorail; nixl_gorail.plugin_dir()", fails=True, XDG_CACHE_HOME="", HOME="/proc/none")
    assert "GorailError: no folder for links to plugins" in err and str(fallback(both)) in err and "XDG_CACHE_HOME" in err
