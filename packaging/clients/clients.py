"""Clients as they come from the registries, unchanged, against a controller: E2B's, forkd's, and those that speak to servers
of tools.

They are installed once, below `target/clients`, and kept; what is installed is printed. The flows are in flows.py and
flows.mjs, those of forkd's own published client in forkd_flows.py, those of tools in mcp_flows.py. A flow that a client of that age does not have is not in its list.
"""

import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What each environment of Python holds, and which flows run in it.
PYTHON = {
    "newest": (["e2b", "e2b-code-interpreter"], {"sync": [], "async": ["create", "commands", "files", "watch", "code", "fork", "errors"]}),
    "early-2": (["e2b==2.15.3"], {"sync": ["create", "commands", "files", "pause", "timeout", "listing", "errors"]}),
}
# Clients of tools, and the published server of them: which versions of the first, and what they are run with.
MCP = {
    "mcp-newest": (["mcp"], ["handshake", "modern"]),
    "mcp-1": (["mcp<2", "forkd-mcp"], ["handshake"]),
}
FORKD = {"forkd": (["forkd"], [])}
SHOWN = ("e2b", "mcp", "forkd")
NODE = ["e2b", "@e2b/code-interpreter"]


def install(folder):
    """Installs what is missing; the first failure raises."""
    if not (shutil.which("npm") and importlib.util.find_spec("ensurepip")):
        packages = ["nodejs", "npm", "python3-venv"]
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], check=True)
    for name, (packages, _) in [*PYTHON.items(), *MCP.items(), *FORKD.items()]:
        place = folder / name
        if not (place / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            subprocess.run([place / "bin/pip", "install", "--quiet", *packages], check=True)
            (place / "complete").touch()
        frozen = subprocess.run([place / "bin/pip", "freeze"], check=True, text=True, stdout=subprocess.PIPE).stdout
        print(f"{name}:", ", ".join(line for line in frozen.splitlines() if line.startswith(SHOWN)), flush=True)
    node = folder / "node"
    if not (node / "complete").exists():
        node.mkdir(parents=True, exist_ok=True)
        (node / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", *NODE], cwd=node, check=True)
        (node / "complete").touch()
    versions = [json.loads((node / "node_modules" / name / "package.json").read_text())["version"] for name in NODE]
    print("node:", ", ".join(f"{name}@{version}" for name, version in zip(NODE, versions)), flush=True)


def runs(folder, url, forkd):
    """(command, folder, environment) of each program of flows."""
    yield from e2b_runs(folder, url)
    yield from mcp_runs(folder, url, forkd)
    yield from forkd_runs(folder, url, forkd)


def mcp_runs(folder, url, forkd):
    env = {**os.environ, "FORKD_URL": url, "FORKD_HTTP_TIMEOUT": "300"}
    flows = HERE / "mcp_flows.py"
    for name, (_, kinds) in MCP.items():
        for kind in kinds:
            yield [folder / name / "bin/python", flows, kind, forkd, "mcp"], HERE, env
    # The published server of tools against the API: its tools are ours.
    yield [folder / "mcp-1" / "bin/python", flows, "handshake", folder / "mcp-1" / "bin/forkd-mcp"], HERE, env
    token = folder / "mcp.token"
    token.write_text(secrets.token_hex(32))
    server = subprocess.Popen([forkd, "mcp", "--http", "127.0.0.1:0", "--token-file", token], env=env, stderr=subprocess.PIPE, text=True)
    try:
        address = server.stderr.readline().split()[-1]
        env = {**env, "MCP_TOKEN": token.read_text()}
        for name, (_, kinds) in MCP.items():
            yield [folder / name / "bin/python", flows, kinds[-1], "--http", address], HERE, env
    finally:
        server.terminate()
        server.wait()


def forkd_runs(folder, url, forkd):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = f"{Path(forkd).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "FORKD_URL": url, "FORKD_TARGET": f"127.0.0.1:{port}", "PATH": path}
    yield [folder / "forkd" / "bin/python", HERE / "forkd_flows.py"], HERE, env


def e2b_runs(folder, url):
    env = {**os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": "e2b_" + 40 * "0"}
    for name, (_, kinds) in PYTHON.items():
        for kind, flows in kinds.items():
            yield [folder / name / "bin/python", HERE / "flows.py", kind, *flows], HERE, env
    # A module's imports are looked for beside it.
    script = folder / "node" / "flows.mjs"
    script.write_text((HERE / "flows.mjs").read_text())
    yield ["node", script], script.parent, env
