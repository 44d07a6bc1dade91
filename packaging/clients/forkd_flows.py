#!/usr/bin/env python3
"""Flows of forkd's published Python client, as it comes from the registry: its Controller over REST, and its Sandbox over TCP.

    forkd_flows.py [FLOW...]      FORKD_URL says where; `forkd` on PATH is ours, and FORKD_TARGET an address that is free

Each flow prints a line; the exit code is 1 where one failed.
"""

import contextlib
import sys
import time
import traceback

import forkd

TAG = "base"
# An emulated host is slow: what a client waits for by itself is waited for longer.
PATIENCE = 300


class Flows:
    def __init__(self):
        self.controller = forkd.Controller(timeout=PATIENCE)

    @contextlib.contextmanager
    def children(self, **asked):
        made = self.controller.spawn_sandboxes(TAG, **asked)
        try:
            yield made
        finally:
            for child in made:
                self.controller.kill_sandbox(child["id"])

    def refused(self, call, status):
        try:
            call()
        except forkd.ControllerError as e:
            assert e.status == status, e
            return
        raise AssertionError(f"not refused with {status}")

    def rest(self):
        assert TAG in [snapshot["tag"] for snapshot in self.controller.list_snapshots()]
        with self.children(n=2, per_child_netns=True, memory_limit_mib=256, prewarm=True, live_fork=True) as made:
            first, second = (child["id"] for child in made)
            assert first != second and all(child["snapshot_tag"] == TAG for child in made), made
            ran = self.controller.exec_command(first, ["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_secs=120)
            assert (ran["stdout"], ran["stderr"], ran["exit_code"]) == ("out\n", "err\n", 3), ran
            assert self.controller.eval_code(first, "6 * 7")["result"] == "42"
            assert "ZeroDivisionError" in self.controller.eval_code(first, "1 / 0")["error"]
            assert self.controller.ping_sandbox(second)["pong"] is True
            assert {first, second} <= {sandbox["id"] for sandbox in self.controller.list_sandboxes()}
            assert self.controller.get_sandbox(second)["memory_limit_mib"] == 256
        self.refused(lambda: self.controller.get_sandbox(first), 404)

    def branch(self):
        with self.children() as made:
            source = made[0]["id"]
            branch = self.controller.branch_sandbox(source, mode="live")
            assert branch["branched_from"] == source and branch["status"] == "ready", branch
            self.refused(lambda: self.controller.branch_sandbox(source, tag=branch["tag"]), 409)
            self.refused(lambda: self.controller.branch_sandbox(source, tag="../up"), 400)
            self.controller.delete_snapshot(branch["tag"])
            self.refused(lambda: self.controller.delete_snapshot(branch["tag"]), 404)

    def talks(self, sandbox):
        """What a sandbox answers over TCP."""
        assert sandbox.ping()["pong"] is True
        ran = sandbox.commands.run("echo grüße; echo err >&2; exit 3", timeout=PATIENCE)
        assert (ran.stdout, ran.stderr, ran.exit_code) == ("grüße\n", "err\n", 3), ran
        assert len(sandbox.commands.run(["head", "-c", "300000", "/dev/zero"], timeout=PATIENCE).stdout) == 300_000
        assert sandbox.commands.run(["no-such-program"]).exit_code != 0
        assert "TimeoutExpired" in sandbox.commands.run("sleep 600", timeout=1).stderr
        assert sandbox.eval("sorted({3, 1, 2})") == "[1, 2, 3]"
        try:
            sandbox.eval("1 / 0")
        except RuntimeError as e:
            assert "ZeroDivisionError" in str(e), e
        else:
            raise AssertionError("an exception is none")

    def target(self):
        with self.children() as made:
            sandbox = forkd.Sandbox(target=made[0]["guest_addr"], timeout=PATIENCE, spawn=False)
            self.talks(sandbox)
        try:
            sandbox.ping()
        except (OSError, RuntimeError):
            return
        raise AssertionError("it answers, and there is none")

    def spawn(self):
        before = len(self.controller.list_sandboxes())
        with forkd.Sandbox(TAG, timeout=PATIENCE) as sandbox:
            assert len(self.controller.list_sandboxes()) == before + 1
            self.talks(sandbox)
        began = time.monotonic()
        while len(self.controller.list_sandboxes()) > before:
            assert time.monotonic() - began < PATIENCE, "its sandbox goes on"
            time.sleep(0.2)

    def spawn_refused(self):
        try:
            forkd.Sandbox("no-such-tag")
        except RuntimeError as e:
            assert "no-such-tag" in str(e), e
        else:
            raise AssertionError("there is no such tag")


FLOWS = ["rest", "branch", "target", "spawn", "spawn_refused"]


def main():
    flows, failed = Flows(), 0
    for name in sys.argv[1:] or FLOWS:
        began = time.monotonic()
        try:
            getattr(flows, name)()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED forkd {name} ({time.monotonic() - began:.1f} s)", flush=True)
        else:
            print(f"ok forkd {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
