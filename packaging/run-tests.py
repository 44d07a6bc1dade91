#!/usr/bin/env python3
"""Runs every test there is and counts each class; the exit code is 0 only where all ran and none failed.

A test that lacks what it needs says `SKIPPED: needs X: why`. It counts as run where the same program runs in
another class of this run with X; otherwise it is listed and the run fails. What must be there is demanded.

What needs no complete KVM runs where this is called. Test programs are static, so those of the crates that
touch KVM, cgroups or namespaces run a second time in the machine (`forkd machine`), which is booted once and
is this run's own: its folder is .machine in the work tree, its API has a port of its own. Downloads and disks
that were made before are shared with other machines.

    packaging/run-tests.py [--soak] [CLASS...]     classes: format lints python unit monitor doc service machine e2e clients
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "packaging/clients"))
import clients  # noqa: E402  beside the flows that it runs
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target")) / "x86_64-unknown-linux-gnu" / "release"
FORKD = TARGET / "forkd"
CLASSES = ["format", "lints", "python", "unit", "monitor", "doc", "service", "machine", "e2e", "clients"]
E2E = "forkd-e2e"
# Crates whose tests run tiny guests: on any /dev/kvm, also one that interprets its guests.
MONITOR = {"forkd-kvm", "forkd-memory", "forkd-vmm"}
# Crates whose tests touch the kernel in ways that differ between this computer and the machine.
IN_MACHINE = MONITOR | {"forkd-host", "forkd-agent"}
API_PORT = int(os.environ.get("FORKD_TEST_PORT", "8899"))
# What tests may demand of the machine, and of this computer.
NEEDS_IN_MACHINE = "kvm,root,cgroup,mount,sock_diag,tun"
NEEDS_HERE, NEEDS_OF_MONITOR = "registry,root", "kvm,root"
SKIPPED = re.compile(r"SKIPPED: needs (\w+): (.*)")
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.M)
FLOW = re.compile(r"^(ok|FAILED) \w+ \w+ \(", re.M)
PYTHON_RESULT = re.compile(r"^Ran (\d+) tests? in", re.M)


class Count:
    """What became of one class of tests."""

    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped, self.seconds = name, 0, 0, 0, 0.0
        # Of each test program that ran: what it needed and lacked, and why that is not there.
        self.lacked = {}

    def add(self, passed, failed, skipped):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped

    def whole(self, ok):
        """Counts something that is one check, or a program that ended without counting."""
        self.add(int(ok), int(not ok), 0)


def shown(command, cwd=TREE, env=None):
    """Runs a command, passes on what it prints as it comes, and returns its exit code and text."""
    print("$", shlex.join(str(word) for word in command), flush=True)
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines = []
    for line in process.stdout:
        text = line.decode(errors="replace")
        lines.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()
    return process.wait(), "".join(lines)


def cargo_tests(count, command, cwd=TREE, env=None, program=None):
    """Runs what prints the summary lines of Rust's test programs."""
    code, text = shown(command, cwd, env)
    found = RESULT.findall(text)
    for passed, failed, ignored in found:
        count.add(int(passed), int(failed), int(ignored))
    # The harness takes a test that returned early for one that passed.
    lacked = SKIPPED.findall(text)
    count.add(-len(lacked), 0, len(lacked))
    if program and found:
        count.lacked[program.name] = lacked
    # One that died, or was never built, has no line that says so.
    if code != 0 and not any(int(failed) for _, failed, _ in found):
        count.whole(False)
    return text


def test_programs():
    """Builds all tests; (package, folder of the package, program) of each."""
    build = ["cargo", "test", "--release", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    print("$", shlex.join(build), flush=True)
    done = subprocess.run(build, cwd=TREE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None
    programs = []
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            if message["profile"]["test"]:
                manifest = Path(message["manifest_path"])
                programs.append((package_of(manifest), manifest.parent, Path(message["executable"])))
    return programs


def package_of(manifest):
    return re.search(r'^name = "([^"]+)"', manifest.read_text(), re.M).group(1)


def environment(folder, **more):
    """As cargo gives it to a test program."""
    return {**os.environ, "CARGO_MANIFEST_DIR": str(folder), "FORKD_LIBEXEC": str(TARGET), **more}


class Host:
    """Where sandboxes run in this test: this run's own machine, or this computer's KVM."""

    def __init__(self):
        self.native = False
        self.server = None
        self.url = f"http://127.0.0.1:{API_PORT}"
        os.environ["FORKD_MACHINE_DIR"] = str(TREE / ".machine")
        os.environ["FORKD_MACHINE_PORT"] = str(API_PORT)
        os.environ["FORKD_LIBEXEC"] = str(TARGET)
        os.environ.pop("FORKD_URL", None)

    def start(self):
        code, text = shown([FORKD, "doctor"])
        if code != 0:
            return False
        doctor = subprocess.run([FORKD, "doctor", "--json"], stdout=subprocess.PIPE, text=True, check=True)
        self.native = json.loads(doctor.stdout)["way"] == "native"
        if self.native:
            return self.serve()
        # What an earlier run left would decide what this one finds.
        shown([FORKD, "machine", "rm", "--yes"])
        return shown([FORKD, "machine", "start"])[0] == 0

    def serve(self):
        root = TREE / ".machine" / "root"
        root.mkdir(parents=True, exist_ok=True)
        command = [FORKD, "serve", "--listen", f"127.0.0.1:{API_PORT}", "--root", root]
        with open(TREE / ".machine" / "controller.log", "ab") as log:
            self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for _ in range(600):
            if subprocess.run([FORKD, "--url", self.url, "ls"], capture_output=True).returncode == 0:
                return True
            if self.server.poll() is not None:
                return False
            time.sleep(0.1)
        return False

    def make_room_for_programs(self):
        """Tests know the path of the programs that were built with them; it leads to the machine's own."""
        folder = shlex.quote(str(TARGET))
        line = f"mkdir -p {folder} && ln -sf /usr/local/bin/forkd* {folder}/"
        shown([FORKD, "machine", "shell", "--", "sh", "-c", line])

    def run_in(self, count, program):
        """Runs a test program in the machine, where one runs."""
        print(f"# in the machine: {program.name}", flush=True)
        there = shlex.quote(f"/tmp/{program.name}")
        stored = subprocess.run(
            f"zstd -q -c {shlex.quote(str(program))} | "
            f"{shlex.quote(str(FORKD))} machine shell -- sh -c {shlex.quote(f'zstd -q -d -c >{there} && chmod 755 {there}')}",
            shell=True,
        )
        if stored.returncode != 0:
            count.whole(False)
            return
        variables = f"RUST_BACKTRACE=1 FORKD_TEST_REQUIRE={NEEDS_IN_MACHINE}"
        line = f"cd /tmp && {variables} timeout 900 {there} --test-threads 2; code=$?; rm -f {there}; exit $code"
        cargo_tests(count, [FORKD, "machine", "shell", "--", "sh", "-c", line], program=program)

    def stop(self, failed):
        if self.server:
            self.server.terminate()
            self.server.wait()
        elif not self.native:
            if failed:
                shown([FORKD, "machine", "logs", "-n", "60"])
            shown([FORKD, "machine", "rm", "--yes"])


def run(wanted, soak):
    counts = []

    def counted(name, work):
        if name in wanted:
            print(f"\n=== {name}", flush=True)
            count, began = Count(name), time.monotonic()
            counts.append(count)
            work(count)
            count.seconds = time.monotonic() - began

    counted("format", lambda c: c.whole(shown(["cargo", "fmt", "--all", "--check"])[0] == 0))
    lints = ["cargo", "clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]
    counted("lints", lambda c: c.whole(shown(lints)[0] == 0))
    counted("python", python_tests)

    programs = None
    if wanted & {"unit", "monitor", "service", "machine", "e2e", "clients"}:
        print("\n=== build", flush=True)
        built = shown(["cargo", "build", "--release", "--workspace"])[0] == 0
        programs = test_programs() if built else None
        if programs is None:
            counts.append(Count("build"))
            counts[-1].whole(False)
            return counts
    if soak:
        os.environ["FORKD_SOAK"] = "1"

    def here(count, needs, belongs):
        for package, folder, program in programs:
            if belongs(package):
                env = environment(folder, FORKD_TEST_REQUIRE=needs)
                cargo_tests(count, [program], folder, env, program)

    counted("unit", lambda c: here(c, NEEDS_HERE, lambda package: package not in MONITOR | {E2E}))
    if os.access("/dev/kvm", os.W_OK):
        counted("monitor", lambda c: here(c, NEEDS_OF_MONITOR, lambda package: package in MONITOR))
    else:
        print("\nno /dev/kvm here: the monitor's tests run in the machine only", flush=True)
    counted("doc", lambda c: cargo_tests(c, ["cargo", "test", "--release", "--workspace", "--doc"]))
    counted("service", service_checks)
    if wanted & {"machine", "e2e", "clients"}:
        with_host(counted, programs)
    return counts


def python_tests(count):
    for folder in sorted({path.parent for path in TREE.glob("guest/**/test_*.py")}):
        code, text = shown([sys.executable, "-m", "unittest", "discover", "-s", folder, "-p", "test_*.py"])
        ran = sum(int(n) for n in PYTHON_RESULT.findall(text))
        skipped = sum(int(n) for n in re.findall(r"skipped=(\d+)", text))
        failed = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", text))
        count.add(ran - skipped - failed, failed, skipped)
        if code != 0 and failed == 0 or ran == 0:
            count.whole(False)


def service_checks(count):
    """Programs that others made, against the API of a controller without KVM."""
    checks, folder = TREE / "packaging/service/checks.py", TARGET.parents[1] / "service"
    flows(count, *shown([sys.executable, checks, folder, TARGET / "examples/furnished"]))


def flows(count, code, text):
    """Counts what a program of flows printed."""
    outcomes = FLOW.findall(text)
    count.add(outcomes.count("ok"), outcomes.count("FAILED"), 0)
    if code != 0 and "FAILED" not in outcomes or not outcomes:
        count.whole(False)


def with_host(counted, programs):
    host, counts = Host(), []

    def machine(count):
        counts.append(count)
        host.make_room_for_programs()
        for package, _, program in programs:
            if package in IN_MACHINE:
                host.run_in(count, program)

    def e2e(count):
        counts.append(count)
        for package, folder, program in programs:
            if package == E2E:
                command = [program, "--test-threads", "2"]  # as many as the machine has processors
                env = environment(folder, FORKD_URL=host.url)
                cargo_tests(count, command, folder, env)

    def client_flows(count):
        counts.append(count)
        folder = TARGET.parents[1] / "clients"
        clients.install(folder)
        # What clients ask for by themselves: made where it is missing.
        count.whole(shown([FORKD, "--url", host.url, "quickstart", "-n", "1"])[0] == 0)
        for command, place, env in clients.runs(folder, host.url, FORKD):
            flows(count, *shown(command, place, env))

    def not_started(count):
        counts.append(count)
        count.whole(False)

    try:
        print("\n=== start the host of sandboxes", flush=True)
        started = host.start()
        if not host.native:
            counted("machine", machine if started else not_started)
        counted("e2e", e2e if started else not_started)
        counted("clients", client_flows if started else not_started)
    finally:
        host.stop(failed=not counts or any(c.failed for c in counts))


def never_ran(counts):
    """(class, program, need, why) of the tests that lacked something in every class that has them."""
    ran = [(program, {need for need, _ in lacked}) for c in counts for program, lacked in c.lacked.items()]
    return [
        (c.name, program, need, why)
        for c in counts
        for program, lacked in c.lacked.items()
        for need, why in lacked
        if all(need in needs for other, needs in ran if other == program)
    ]


def summary(counts):
    print(f"\n{'class':<10} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for c in counts:
        print(f"{c.name:<10} {c.passed:>7} {c.failed:>7} {c.skipped:>8} {c.seconds:>8.0f}")
    passed, failed, skipped = (sum(getattr(c, what) for c in counts) for what in ("passed", "failed", "skipped"))
    # A class that ran nothing tested nothing.
    empty = [c.name for c in counts if c.passed + c.failed == 0 and c.name != "doc"]
    for name in empty:
        print(f"{name}: no test ran")
    said = sum(len(lacked) for c in counts for lacked in c.lacked.values())
    lost = never_ran(counts)
    for name, program, need, why in lost:
        print(f"{name}: {program.rsplit('-', 1)[0]} was not tested without {need}: {why}")
    unaccounted = skipped - said + len(lost)
    if skipped:
        print(f"of the skipped, {skipped - unaccounted} ran in another class")
    print(f"total: {passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or unaccounted or empty or not counts else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soak", action="store_true", help="the large counts (FORKD_SOAK=1 for the tests)")
    parser.add_argument("classes", nargs="*", metavar="CLASS", help="only these")
    arguments = parser.parse_args()
    unknown = set(arguments.classes) - set(CLASSES)
    if unknown:
        parser.error(f"no such class: {', '.join(sorted(unknown))}")
    return summary(run(set(arguments.classes or CLASSES), arguments.soak))


if __name__ == "__main__":
    sys.exit(main())
