"""Paths of others: the cases of GORAIL's own rule."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package as it lies here
from nixl_gorail import _safepath  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CASES = json.loads((ROOT / "backend" / "host" / "testdata" / "cases.json").read_text())


def build(case, folder):
    for line in case["make"]:
        kind, name, what, user = line.split()
        path = folder / name
        if kind == "d":
            path.mkdir(mode=0o700)
        elif kind == "f":
            path.touch()
        else:
            path.symlink_to(what)
        if user != "0":
            if os.geteuid() != 0:
                pytest.skip("needs root to give files to another user")
            os.chown(path, int(user), int(user), follow_symlinks=False)
        if kind != "l":
            path.chmod(int(what, 8))


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_case(case, tmp_path):
    try:
        check(case, tmp_path)
    finally:
        for line in case["make"]:  # pytest's cleanup follows links in a circle
            path = tmp_path / line.split()[1]
            if path.is_symlink():
                path.unlink()


def check(case, tmp_path):
    build(case, tmp_path)
    path = os.path.dirname(f"{tmp_path}/{case['path']}") if case["path"].endswith("x") else f"{tmp_path}/{case['path']}"
    if not case["trusted"]:
        _safepath.trusted(path)
        return
    with pytest.raises((OSError, ValueError)) as refused:
        _safepath.trusted(path)
    assert case["trusted"].lower() in str(refused.value).lower()


def test_relative():
    with pytest.raises(ValueError):
        _safepath.trusted("x/y")


def test_missing_folders_are_made_in_checked_ones(tmp_path):
    _safepath.trusted(f"{tmp_path}/a/b", make=0o700)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    if os.geteuid() != 0:
        pytest.skip("needs root to give links to another user")
    (tmp_path / "precious").mkdir()
    (tmp_path / "to").symlink_to("precious")
    real = os.mkdir

    def slow(name, *how, **more):  # another user is faster
        (tmp_path / name).symlink_to("precious")
        os.chown(tmp_path / name, 54321, 54321, follow_symlinks=False)
        real(name, *how, **more)

    os.mkdir = slow
    try:
        with pytest.raises(OSError):
            _safepath.trusted(f"{tmp_path}/new/b", make=0o700)
    finally:
        os.mkdir = real
    assert not any((tmp_path / "precious").iterdir())


def test_users_without_number(tmp_path):
    """In a user namespace the owner of a folder may be anybody where every user may make folders."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    walk = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); from nixl_gorail import _safepath; _safepath.trusted(sys.argv[2])", str(ROOT / "python")]
    if subprocess.run(["unshare", "-Ur", "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    for name, mode, good in (("plain", 0o755, True), ("sticky", 0o1777, False)):
        his = tmp_path / name / "his"
        his.mkdir(parents=True)
        os.chown(his, 54321, 54321)
        his.parent.chmod(mode)
        done = subprocess.run(["unshare", "-Ur", *walk, str(his)], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == good, done.stderr
        assert good or "belongs to user 65534" in done.stderr
