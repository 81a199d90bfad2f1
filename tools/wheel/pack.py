"""Packs a wheel from built files. The same files give the same bytes: entries are sorted, and their time is 1980.

    pack.py --arch x86_64 --plugin libplugin_GORAIL.so --tool gorail --to dist
"""

import argparse
import base64
import hashlib
import pathlib
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "python"
PACKAGE = "nixl_gorail"


def metadata(project, version):
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        f"Requires-Python: {project['requires-python']}",
        *[f"Classifier: {c}" for c in project["classifiers"]],
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (SOURCE / project["readme"]).read_text()


def entry_points(scripts):
    return "[console_scripts]\n" + "".join(f"{name} = {target}\n" for name, target in sorted(scripts.items()))


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--arch", required=True)
    p.add_argument("--plugin", type=pathlib.Path, required=True)
    p.add_argument("--tool", type=pathlib.Path, required=True)
    p.add_argument("--to", type=pathlib.Path, required=True)
    args = p.parse_args()

    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    version = (ROOT / "VERSION").read_text().strip()
    tag = f"py3-none-manylinux_2_28_{args.arch}"
    info = f"{PACKAGE}-{version}.dist-info"

    files = {}  # name in the wheel -> bytes, and whether it is a program
    for path in sorted((SOURCE / PACKAGE).rglob("*")):
        if path.is_file() and (path.suffix == ".py" or path.name == "py.typed"):
            files[f"{PACKAGE}/{path.relative_to(SOURCE / PACKAGE)}"] = path.read_bytes(), False
    files[f"{PACKAGE}/lib/libplugin_GORAIL.so"] = args.plugin.read_bytes(), True
    files[f"{PACKAGE}/bin/gorail"] = args.tool.read_bytes(), True
    files[f"{info}/METADATA"] = metadata(project, version).encode(), False
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: gorail\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False
    files[f"{info}/entry_points.txt"] = entry_points(project["scripts"]).encode(), False
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes(), False

    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, (data, _) in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode(), False

    args.to.mkdir(exist_ok=True)
    wheel = args.to / f"{PACKAGE}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name, (data, program) in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            z.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    main()
