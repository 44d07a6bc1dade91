"""E2B's clients as they come from the registries, unchanged, against a controller.

They are installed once, below `target/clients`, and kept; what is installed is printed. The flows are in flows.py and
flows.mjs. A flow that a client of that age does not have is not in its list.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What each environment of Python holds, and which flows run in it.
PYTHON = {
    "newest": (["e2b", "e2b-code-interpreter"], {"sync": [], "async": ["create", "commands", "files", "watch", "code", "fork", "errors"]}),
    "early-2": (["e2b==2.15.3"], {"sync": ["create", "commands", "files", "pause", "timeout", "listing", "errors"]}),
}
NODE = ["e2b", "@e2b/code-interpreter"]


def install(folder):
    """Installs what is missing; the first failure raises."""
    if not (shutil.which("npm") and importlib.util.find_spec("ensurepip")):
        packages = ["nodejs", "npm", "python3-venv"]
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], check=True)
    for name, (packages, _) in PYTHON.items():
        place = folder / name
        if not (place / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            subprocess.run([place / "bin/pip", "install", "--quiet", *packages], check=True)
            (place / "complete").touch()
        frozen = subprocess.run([place / "bin/pip", "freeze"], check=True, text=True, stdout=subprocess.PIPE).stdout
        print(f"{name}:", ", ".join(line for line in frozen.splitlines() if line.startswith("e2b")), flush=True)
    node = folder / "node"
    if not (node / "complete").exists():
        node.mkdir(parents=True, exist_ok=True)
        (node / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", *NODE], cwd=node, check=True)
        (node / "complete").touch()
    versions = [json.loads((node / "node_modules" / name / "package.json").read_text())["version"] for name in NODE]
    print("node:", ", ".join(f"{name}@{version}" for name, version in zip(NODE, versions)), flush=True)


def runs(folder, url):
    """(command, folder, environment) of each program of flows."""
    env = {**os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": "e2b_" + 40 * "0"}
    for name, (_, kinds) in PYTHON.items():
        for kind, flows in kinds.items():
            yield [folder / name / "bin/python", HERE / "flows.py", kind, *flows], HERE, env
    # A module's imports are looked for beside it.
    script = folder / "node" / "flows.mjs"
    script.write_text((HERE / "flows.mjs").read_text())
    yield ["node", script], script.parent, env
