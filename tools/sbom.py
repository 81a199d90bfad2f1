"""Prints an SBOM of cyclonedx-gomod without what differs between builds: the time, the hashes of the tool, the architecture.

    sbom.py FILE VERSION

The version of the main module becomes VERSION, in place of one that Go makes from git.
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
text = json.dumps(bom, indent=2, ensure_ascii=False) + "\n"
text = re.sub(r"(\?|&)goarch=\w+&goos=linux(?=[&\"#])", r"\1goos=linux", text)
text = text.replace(f"gorail@{main['version']}", f"gorail@{version}").replace(f'"version": "{main["version"]}"', f'"version": "{version}"')
print(text, end="")
