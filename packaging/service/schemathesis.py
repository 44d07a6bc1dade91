"""schemathesis asks what the OpenAPI document allows, and what it does not, and holds the answers against it."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Requests of each kind per operation: few in every run, many where there is time.
EXAMPLES = {False: 4, True: 200}
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
]
# What a sandbox answers itself is not forkd's; a stream of events has no end.
NOT_OURS = "/(agent|ports|tunnel)/"


def install(folder):
    """Into an environment of its own, once. The version is returned."""
    venv = folder / "venv"
    if not importlib.util.find_spec("ensurepip"):
        packages = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"]
        subprocess.run(packages, check=True)
    if not (venv / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", "schemathesis"], check=True)
        (venv / "complete").touch()
    told = subprocess.run([venv / "bin/st", "--version"], check=True, text=True, capture_output=True)
    return told.stdout.strip()


def run(folder, address):
    # With the first token loopback demands one: so there is one from the beginning.
    made = ask(address, "POST", "/v1/tokens", {"scope": "admin"})
    try:
        hold(folder, address, made["token"])
    finally:
        # Monitors outlive their controller, also those that are fakes.
        for sandbox in ask(address, "GET", "/v1/sandboxes", token=made["token"]):
            ask(address, "DELETE", f"/v1/sandboxes/{sandbox['id']}", token=made["token"])


def hold(folder, address, token):
    """The answers against the document."""
    sandboxes = [sandbox["id"] for sandbox in ask(address, "GET", "/v1/sandboxes", token=token)]
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            folder / "venv/bin/st",
            "run",
            f"{address}/openapi.json",
            "--checks=" + ",".join(CHECKS),
            "--phases=examples,coverage,fuzzing",
            f"--max-examples={EXAMPLES['FORKD_SOAK' in os.environ]}",
            "--seed=1",
            "--generation-database=none",
            f"--exclude-path-regex={NOT_OURS}",
            f"--header=Authorization:Bearer {token}",
            "--request-timeout=60",
            "--no-color",
        ]
        env = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "hooks",
            "PYTHONPATH": str(HERE / "hooks"),
            "FORKD_SANDBOXES": ",".join(sandboxes),
        }
        done = subprocess.run(command, cwd=scratch, env=env, stdin=subprocess.DEVNULL, text=True, capture_output=True)
    # Its summary; all of it where something was found.
    print(done.stdout if done.returncode else done.stdout[done.stdout.rfind("SUMMARY") :], done.stderr, sep="")
    if done.returncode:
        raise AssertionError("the API and its document differ, or it failed")


def ask(address, method, path, body=None, token=None):
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(address + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None
