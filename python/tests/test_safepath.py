"""Paths of others: the cases of GORAIL's own rule."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package as it lies here
from nixl_gorail import _safepath  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CASES = json.loads((ROOT / "backend" / "safepath" / "testdata" / "cases.json").read_text())


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
