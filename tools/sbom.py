"""Prints an SBOM of cyclonedx-gomod without what differs between builds: the time, the hashes of the tool, the architecture.

    sbom.py FILE VERSION

The version of the main module becomes VERSION, in place of one that Go makes from git, and so does that of the plugin's module in the tool.
"""

import json
import re
import sys

bom = json.load(open(sys.argv[1], encoding="utf-8"))
version = sys.argv[2]
meta = bom["metadata"]
del meta["timestamp"]
for tool in meta["tools"]:
    tool.pop("hashes", None)
main = meta["component"]
main.pop("properties", None)  # GOARCH and other build constraints
for c in bom.get("components", []):
    c.setdefault("version", version)  # the plugin's module, as one of go.work
text = json.dumps(bom, indent=2, ensure_ascii=False) + "\n"
text = re.sub(r"(\?|&)goarch=\w+&goos=linux(?=[&\"#])", r"\1goos=linux", text)
text = text.replace(f"gorail@{main['version']}", f"gorail@{version}").replace(f'"version": "{main["version"]}"', f'"version": "{version}"')
text = text.replace("pkg:golang/gorail?", f"pkg:golang/gorail@{version}?")
print(text, end="")
