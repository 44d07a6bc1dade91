#!/usr/bin/env python3
"""Flows of the Model Context Protocol's Python client, as it comes from the registry, against a server of tools.

    mcp_flows.py KIND COMMAND...      the server is COMMAND, over standard input and output
    mcp_flows.py KIND --http URL      or at URL, with the bearer token in MCP_TOKEN

KIND is `handshake`, or `modern` for the era without handshakes. Each flow prints a line; the exit code is 1 where one failed.
The published forkd-mcp and `forkd mcp` pass the same flows, but for the tools that only the latter has.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
import traceback

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

TAG = "code-interpreter-v1"
OURS = {"read_file", "write_file", "list_files", "fork_sandbox", "pause_sandbox", "resume_sandbox"}
PUBLISHED = {
    "list_snapshots", "create_snapshot", "spawn_sandboxes", "list_sandboxes", "get_sandbox", "branch_sandbox",
    "exec_command", "eval_code", "ping_sandbox", "wait_for_text", "kill_sandbox",
}  # fmt: skip


@contextlib.asynccontextmanager
async def connected(kind, where):
    """A session with the server."""
    async with contextlib.AsyncExitStack() as stack:
        if where[0] == "--http":
            transport = streamable_http_client(where[1], http_client=await stack.enter_async_context(web()))
        else:
            transport = stdio_client(StdioServerParameters(command=where[0], args=where[1:], env=dict(os.environ)))
        if kind == "modern":
            from mcp import Client

            yield await stack.enter_async_context(Client(transport, mode="2026-07-28"))
            return
        read, write, *_ = await stack.enter_async_context(transport)
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()
        yield session


def web():
    """A web client that sends the token; the library changed the package it takes one from."""
    try:
        import httpx2 as httpx
    except ImportError:
        import httpx
    return httpx.AsyncClient(headers={"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}, timeout=300)


class Flows:
    def __init__(self, session):
        self.session = session

    async def call(self, tool, **arguments):
        answer = await self.session.call_tool(tool, arguments)
        assert not failed(answer), answer
        return structured(answer)

    async def tools(self):
        names = {tool.name for tool in (await self.session.list_tools()).tools}
        assert PUBLISHED <= names, PUBLISHED - names
        assert not (OURS & names) or OURS <= names, names
        self.ours = OURS <= names

    async def life(self):
        assert TAG in [s["tag"] for s in (await self.call("list_snapshots"))["result"]]
        spawned = await self.call("spawn_sandboxes", snapshot_tag=TAG, n=1, memory_limit_mib=512)
        name = spawned["result"][0]["id"]
        try:
            assert name in [s["id"] for s in (await self.call("list_sandboxes"))["result"]]
            assert (await self.call("get_sandbox", sandbox_id=name))["id"] == name
            assert (await self.call("ping_sandbox", sandbox_id=name))["pong"] is True
            ran = await self.call("exec_command", sandbox_id=name, args=["sh", "-c", "echo out; echo marker >/log; exit 3"])
            assert (ran["stdout"], ran["exit_code"]) == ("out\n", 3), ran
            seen = await self.call("wait_for_text", sandbox_id=name, path="/log", marker="marker", timeout_secs=60)
            assert seen["found"] is True, seen
            value = await self.call("eval_code", sandbox_id=name, code="sum(range(10))")
            assert value["result"] == "45", value
            if self.ours:
                await self.files(name)
            branch = await self.call("branch_sandbox", sandbox_id=name)
            assert branch["branched_from"] == name, branch
            if self.ours:
                await self.call("delete_snapshot", tag=branch["tag"])
        finally:
            assert (await self.call("kill_sandbox", sandbox_id=name)) == {"id": name, "killed": True}

    async def files(self, name):
        await self.call("write_file", sandbox_id=name, path="/srv/a b/c", content="text ü")
        read = await self.call("read_file", sandbox_id=name, path="/srv/a b/c")
        assert (read["content"], read["base64"], read["truncated"]) == ("text ü", False, False), read
        listed = await self.call("list_files", sandbox_id=name, path="/srv/a b")
        assert [entry["name"] for entry in listed["result"]] == ["c"], listed

    async def failures(self):
        for tool, arguments in [
            ("spawn_sandboxes", {"snapshot_tag": "no-such-tag"}),
            ("get_sandbox", {"sandbox_id": "sb-0-0"}),
            ("exec_command", {"sandbox_id": "sb-0-0"}),
        ]:
            answer = await self.session.call_tool(tool, arguments)
            assert failed(answer), (tool, answer)
            assert answer.content[0].text.startswith(f"Error executing tool {tool}"), answer


def failed(answer):
    return getattr(answer, "is_error", None) or getattr(answer, "isError", None) or False


def structured(answer):
    found = getattr(answer, "structured_content", None) or getattr(answer, "structuredContent", None)
    # A server of another age tells it as text alone.
    return found if found is not None else json.loads(answer.content[0].text)


async def main(kind, where):
    bad = 0
    async with connected(kind, where) as session:
        flows = Flows(session)
        for name in ["tools", "life", "failures"]:
            began = time.monotonic()
            try:
                await getattr(flows, name)()
                outcome = "ok"
            except Exception:
                traceback.print_exc()
                outcome, bad = "FAILED", 1
            print(f"{outcome} {kind} {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2:])))
