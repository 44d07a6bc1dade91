"""Debian's Prometheus scrapes the controller, and answers the queries of the dashboard."""

import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

DASHBOARD = Path(__file__).resolve().parent.parent / "grafana" / "forkd.json"
# What forkd's users have in theirs.
KNOWN = ["forkd_snapshots_total", "forkd_sandboxes_active", "forkd_build_info"]
WITHIN = 60


def install(folder):
    """Unpacks the package without installing it, which would start a server. The version is returned."""
    program = folder / "usr/bin/prometheus"
    if not program.exists():
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(["apt-get", "-qq", "update"], check=True)
            # As root apt works as another user, who cannot write to the folder.
            download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
            subprocess.run(download, cwd=scratch, check=True)
            [package] = Path(scratch).glob("*.deb")
            subprocess.run(["dpkg", "-x", package, folder], check=True)
    told = subprocess.run([program, "--version"], check=True, text=True, capture_output=True)
    return (told.stdout or told.stderr).splitlines()[0]


def run(folder, address):
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "prometheus.yml"
        target = json.dumps([address.removeprefix("http://")])
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: forkd, static_configs: [{{targets: {target}}}]}}]\n"
        )
        listen = f"127.0.0.1:{free_port()}"
        command = [
            folder / "usr/bin/prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={scratch}/data",
            f"--web.listen-address={listen}",
            "--log.level=warn",
        ]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            look(f"http://{listen}/api/v1")
        finally:
            server.terminate()
            server.wait(timeout=30)


def look(api):
    target = until(lambda: scraped(api), "the controller was not scraped")
    if target["lastError"]:
        raise AssertionError(f"the scrape failed: {target['lastError']}")
    # Two sandboxes and the workspace's; the snapshot that all of them are of.
    active = until(lambda: value(api, "forkd_sandboxes_active"), "no answer to forkd_sandboxes_active")
    if active != 3:
        raise AssertionError(f"three sandboxes run, and Prometheus has {active}")
    for query, wanted in [
        ("forkd_snapshots_total", 1),
        ("forkd_fork_seconds_count", 3),
        ('sum(forkd_build_info{version!=""})', 1),
        ('forkd_operation_seconds_count{operation="snapshot"}', 1),
        ("forkd_sandboxes_killed_total{reason=\"memory\"}", 0),
        ('forkd_store_bytes{kind="layers"} > bool 0', 1),
    ]:
        found = value(api, query)
        if found != wanted:
            raise AssertionError(f"{query} is {found}, not {wanted}")
    names = set(get(f"{api}/label/__name__/values"))
    queries = expressions(json.loads(DASHBOARD.read_text()))
    for query in [*KNOWN, *queries]:
        # Of what did not happen yet there is no series, but what did has its name.
        missing = set(re.findall(r"forkd_\w+", query)) - names - NOT_YET
        if missing:
            raise AssertionError(f"{query} asks for {', '.join(missing)}, which nobody tells")
        ask(api, query.replace("$__rate_interval", "1m"))


# Series of the dashboard that nothing made in a controller whose sandboxes only run.
NOT_YET = {
    "forkd_branch_pause_seconds_bucket",
    "forkd_branch_workload_pause_seconds_bucket",
    "forkd_operation_failures_total",
    "forkd_errors_total",
}


def expressions(dashboard):
    found = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    if len(found) < 10:
        raise AssertionError(f"the dashboard has {len(found)} queries")
    return found


def scraped(api):
    active = get(f"{api}/targets")["activeTargets"]
    return next((target for target in active if target["health"] != "unknown"), None)


def value(api, query):
    result = ask(api, query)["result"]
    return float(result[0]["value"][1]) if result else None


def ask(api, query):
    return get(f"{api}/query?{urllib.parse.urlencode({'query': query})}")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        told = json.load(answer)
    if told["status"] != "success":
        raise AssertionError(f"{url}: {told}")
    return told["data"]


def until(look, failure):
    """What `look` finds as soon as it finds something."""
    end = time.monotonic() + WITHIN
    while time.monotonic() < end:
        try:
            if found := look():
                return found
        except (urllib.error.URLError, ConnectionError):
            pass  # it does not listen yet
        time.sleep(0.1)
    raise AssertionError(failure)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
