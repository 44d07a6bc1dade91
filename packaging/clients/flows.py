#!/usr/bin/env python3
"""Flows of E2B's Python client, as it comes from the registry, against a controller.

    flows.py sync|async [FLOW...]      E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where

Each flow prints a line; the exit code is 1 where one failed.
"""

import asyncio
import inspect
import io
import sys
import time
import traceback

import e2b

TEMPLATE = "base"
# An emulated host is slow: what a client waits for by itself is waited for longer.
PATIENT = {"request_timeout": 300}


class Flows:
    """Written once, for both kinds of client: `await self.done(…)` waits for what the asynchronous one returns."""

    def __init__(self, kind):
        self.kind = kind
        self.client = getattr(e2b, "AsyncSandbox" if kind == "async" else "Sandbox")

    async def done(self, value):
        return await value if inspect.isawaitable(value) else value

    async def make(self, **more):
        return await self.done(self.client.create(TEMPLATE, timeout=600, **PATIENT, **more))

    async def refused(self, error, call):
        try:
            await self.done(call())
        except error as e:
            return str(e)
        raise AssertionError(f"no {error.__name__}")

    async def create(self):
        sandbox = await self.make(metadata={"flow": "a b&c=d"}, envs={"GREETING": "hello"})
        assert sandbox.sandbox_id.startswith("sb-"), sandbox.sandbox_id
        assert await self.done(sandbox.is_running(**PATIENT))
        ran = await self.done(sandbox.commands.run("echo $GREETING; hostname", **PATIENT))
        assert ran.stdout.splitlines()[0] == "hello", ran
        info = await self.done(sandbox.get_info(**PATIENT))
        assert info.metadata == {"flow": "a b&c=d"} and info.template_id == TEMPLATE, info
        assert info.end_at > info.started_at
        assert await self.done(sandbox.kill(**PATIENT))
        assert not await self.done(sandbox.kill(**PATIENT))
        assert not await self.done(sandbox.is_running(**PATIENT))

    async def commands(self):
        sandbox = await self.make()
        run = sandbox.commands.run
        try:
            seen = []
            kind = (lambda text: seen.append(text)) if self.kind != "async" else self.collector(seen)
            ran = await self.done(run("printf 'a\\n'; printf 'ü\\n' >&2; cd /tmp; pwd", on_stdout=kind, **PATIENT))
            assert (ran.exit_code, ran.stderr, ran.stdout) == (0, "ü\n", "a\n/tmp\n"), ran
            assert "".join(seen) == ran.stdout, seen
            failed = await self.refused(e2b.CommandExitException, lambda: run("exit 7", **PATIENT))
            assert "7" in failed, failed
            ran = await self.done(run("echo $A; pwd; id -un", envs={"A": "b"}, cwd="/usr", user="root", **PATIENT))
            assert ran.stdout == "b\n/usr\nroot\n", ran
            back = await self.done(run("read line; echo got $line", background=True, stdin=True, **PATIENT))
            assert back.pid in [p.pid for p in await self.done(sandbox.commands.list(**PATIENT))]
            await self.done(sandbox.commands.send_stdin(back.pid, "word\n", **PATIENT))
            ran = await self.done(back.wait())
            assert ran.stdout == "got word\n", ran
            back = await self.done(run("sleep 600", background=True, timeout=0, **PATIENT))
            assert await self.done(sandbox.commands.kill(back.pid, **PATIENT))
            await self.refused(e2b.CommandExitException, back.wait)
            assert not await self.done(sandbox.commands.kill(back.pid, **PATIENT))
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def deadline(self):
        """Early clients hear of their own deadline before the agent tells them of it."""
        sandbox = await self.make()
        try:
            slow = lambda: sandbox.commands.run("sleep 600", timeout=3, request_timeout=300)
            await self.refused(e2b.TimeoutException, slow)
        finally:
            await self.done(sandbox.kill(**PATIENT))

    @staticmethod
    def collector(seen):
        async def collect(text):
            seen.append(text)

        return collect

    async def pty(self):
        sandbox = await self.make()
        try:
            seen = []
            size = getattr(e2b, "PtySize")(rows=24, cols=100)
            if self.kind == "async":
                terminal = await sandbox.pty.create(size, on_data=self.collector(seen), timeout=0, **PATIENT)
            else:
                terminal = sandbox.pty.create(size, timeout=0, **PATIENT)
            await self.done(sandbox.pty.resize(terminal.pid, type(size)(rows=30, cols=120), **PATIENT))
            await self.done(sandbox.pty.send_stdin(terminal.pid, b"test -t 0 && stty size; exit\n", **PATIENT))
            if self.kind == "async":
                await terminal.wait()
            else:
                terminal.wait(on_pty=seen.append)
            assert b"30 120" in b"".join(seen), seen
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def files(self):
        sandbox = await self.make()
        files = sandbox.files
        try:
            await self.done(files.write("/tmp/deep/er/a.bin", io.BytesIO(bytes(range(256))), **PATIENT))
            read = await self.done(files.read("/tmp/deep/er/a.bin", format="bytes", **PATIENT))
            assert bytes(read) == bytes(range(256))
            assert await self.done(files.exists("/tmp/deep", **PATIENT))
            assert [entry.name for entry in await self.done(files.list("/tmp/deep/er", **PATIENT))] == ["a.bin"]
            assert await self.done(files.make_dir("/tmp/new/dir", **PATIENT))
            assert not await self.done(files.make_dir("/tmp/new/dir", **PATIENT))
            moved = await self.done(files.rename("/tmp/deep/er/a.bin", "/tmp/new/b.bin", **PATIENT))
            assert moved.path == "/tmp/new/b.bin", moved
            await self.done(files.remove("/tmp/new", **PATIENT))
            assert not await self.done(files.exists("/tmp/new/b.bin", **PATIENT))
            await self.refused(e2b.NotFoundException, lambda: files.read("/tmp/none", **PATIENT))
            # Text and several files at once travel as parts of a form.
            await self.done(files.write("note.txt", "grün\n", **PATIENT))
            assert await self.done(files.read("/home/user/note.txt", **PATIENT)) == "grün\n"
            several = [{"path": f"/tmp/many/{n}", "data": str(n)} for n in range(3)]
            write = getattr(files, "write_files", files.write)
            assert len(await self.done(write(several, **PATIENT))) == 3
            assert await self.done(files.read("/tmp/many/2", **PATIENT)) == "2"
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def watch(self):
        sandbox = await self.make()
        files = sandbox.files
        try:
            await self.done(files.make_dir("/tmp/seen", **PATIENT))
            events = []
            if self.kind == "async":
                handle = await files.watch_dir("/tmp/seen", on_event=events.append, timeout=0, **PATIENT)
            else:
                handle = files.watch_dir("/tmp/seen", **PATIENT)
            await self.done(files.write("/tmp/seen/a", b"x", **PATIENT))
            for _ in range(600):
                if self.kind != "async":
                    events += handle.get_new_events(**PATIENT)
                if any(event.name == "a" for event in events):
                    break
                await asyncio.sleep(0.1)
            assert any(event.name == "a" for event in events), events
            await self.done(handle.stop())
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def code(self):
        import e2b_code_interpreter as interpreter

        client = getattr(interpreter, "AsyncSandbox" if self.kind == "async" else "Sandbox")
        sandbox = await self.done(client.create(timeout=600, **PATIENT))
        run = lambda code, **more: self.done(sandbox.run_code(code, timeout=300, **PATIENT, **more))
        try:
            ran = await run("import numpy\nprint('out')\nnumpy.arange(3)")
            assert ran.text == "array([0, 1, 2])" and ran.logs.stdout == ["out\n"], ran
            assert (await run("x = 40 + 2")).text is None
            assert (await run("x")).text == "42"
            failed = await run("1 / 0")
            assert failed.error.name == "ZeroDivisionError" and "1 / 0" in failed.error.traceback, failed
            shown = await run("display({'text/html': '<b>'}, raw=True)\n{'a': [1]}")
            assert shown.results[0].html == "<b>" and shown.results[1].json == {"a": [1]}, shown
            assert (await run("import os\nos.environ['ONLY']", envs={"ONLY": "1"})).text == "1"
            context = await self.done(sandbox.create_code_context(cwd="/tmp", **PATIENT))
            assert (await run("import os\nos.getcwd()", context=context)).text == "/tmp"
            assert (await run("'x' in dir()", context=context)).text == "False"
            assert context.id in [c.id for c in await self.done(sandbox.list_code_contexts())]
            await self.done(sandbox.restart_code_context(context))
            await self.done(sandbox.remove_code_context(context))
            await self.refused(e2b.NotFoundException, lambda: sandbox.run_code("1", context=context, **PATIENT))
            shell = await run("cd /usr; pwd", language="bash")
            assert shell.logs.stdout == ["/usr\n"], shell
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def pause(self):
        sandbox = await self.make()
        try:
            await self.done(sandbox.commands.run("echo kept > /tmp/kept", **PATIENT))
            pause = getattr(sandbox, "pause", None) or sandbox.beta_pause
            await self.done(pause(**PATIENT))
            assert not await self.done(sandbox.is_running(**PATIENT))
            connect = self.client.connect
            again = await self.done(connect(sandbox.sandbox_id, timeout=600, **PATIENT))
            ran = await self.done(again.commands.run("cat /tmp/kept", **PATIENT))
            assert ran.stdout == "kept\n", ran
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def fork(self):
        source = await self.make()
        made = [source]
        try:
            await self.done(source.commands.run("echo from > /tmp/source", **PATIENT))
            forked = await self.done(source.fork(count=2, timeout=600, **PATIENT))
            children = [getattr(one, "sandbox", one) for one in forked]
            made += children
            names = set()
            for child in children:
                ran = await self.done(child.commands.run("cat /tmp/source; cat /proc/sys/kernel/hostname", **PATIENT))
                first, name = ran.stdout.split()
                assert first == "from", ran
                names.add(name)
            assert names == {child.sandbox_id for child in children}, names
        finally:
            for sandbox in made:
                await self.done(sandbox.kill(**PATIENT))

    async def snapshot(self):
        source = await self.make()
        try:
            await self.done(source.commands.run("echo from > /tmp/source", **PATIENT))
            made = await self.done(source.create_snapshot(**PATIENT))
            child = await self.done(self.client.create(made.snapshot_id, timeout=600, **PATIENT))
            try:
                ran = await self.done(child.commands.run("cat /tmp/source", **PATIENT))
                assert ran.stdout == "from\n", ran
            finally:
                await self.done(child.kill(**PATIENT))
            assert await self.done(self.client.delete_snapshot(made.snapshot_id, **PATIENT))
            assert not await self.done(self.client.delete_snapshot(made.snapshot_id, **PATIENT))
        finally:
            await self.done(source.kill(**PATIENT))

    async def timeout(self):
        sandbox = await self.make()
        before = (await self.done(sandbox.get_info(**PATIENT))).end_at
        await self.done(sandbox.set_timeout(1000, **PATIENT))
        assert (await self.done(sandbox.get_info(**PATIENT))).end_at > before
        await self.done(sandbox.set_timeout(0, **PATIENT))
        until = time.monotonic() + 300
        while await self.done(sandbox.is_running(**PATIENT)):
            assert time.monotonic() < until
            await asyncio.sleep(1)
        await self.refused(e2b.SandboxException, lambda: sandbox.commands.run("true", **PATIENT))

    async def metrics(self):
        sandbox = await self.make()
        try:
            metrics = await self.done(sandbox.get_metrics(**PATIENT))
            assert metrics and metrics[-1].mem_total > metrics[-1].mem_used > 0, metrics
            assert metrics[-1].disk_total > metrics[-1].disk_used > 0 and metrics[-1].cpu_count == 1, metrics
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def listing(self):
        sandbox = await self.make(metadata={"listed": sys.argv[1]})
        try:
            query = e2b.SandboxQuery(metadata={"listed": sys.argv[1]})
            pages = self.client.list(query=query, limit=1, **PATIENT)
            found = await self.done(pages.next_items())
            assert [one.sandbox_id for one in found] == [sandbox.sandbox_id] and not pages.has_next, found
        finally:
            await self.done(sandbox.kill(**PATIENT))

    async def errors(self):
        told = await self.refused(e2b.SandboxException, lambda: self.client.create("no-such-template", **PATIENT))
        assert "no-such-template" in told, told
        await self.refused(e2b.SandboxException, lambda: self.client.connect("sb-0-0", **PATIENT))
        sandbox = await self.make()
        try:
            files = sandbox.files
            await self.refused(e2b.SandboxException, lambda: files.list("/none", **PATIENT))
            await self.refused(e2b.SandboxException, lambda: sandbox.commands.run("true", cwd="/none", **PATIENT))
        finally:
            await self.done(sandbox.kill(**PATIENT))


FLOWS = {
    "sync": ["create", "commands", "deadline", "pty", "files", "watch", "code", "pause", "fork", "snapshot", "timeout", "metrics", "listing", "errors"],
}
FLOWS["async"] = FLOWS["sync"]


async def main():
    kind, *chosen = sys.argv[1:]
    flows = Flows(kind)
    failed = 0
    for name in chosen or FLOWS[kind]:
        began = time.monotonic()
        try:
            await getattr(flows, name)()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED {kind} {name} ({time.monotonic() - began:.1f} s)", flush=True)
        else:
            print(f"ok {kind} {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
