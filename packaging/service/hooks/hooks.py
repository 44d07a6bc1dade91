"""Names that exist, in the place of every other one that is made up: else nothing but 404 would be tested."""

import itertools
import os

import schemathesis

SANDBOXES = os.environ["FORKD_SANDBOXES"].split(",")
EXISTING = {
    "/v1/sandboxes/{id}": {"id": SANDBOXES[0]},
    "/v1/snapshots/{tag}": {"tag": "warm"},
    "/v1/workspaces/{name}": {"name": "mine"},
    "/v1/images/{name}": {"name": "py"},
    "/v1/kernels/{name}": {"name": "k"},
}
KEPT = {*SANDBOXES, *(value for names in EXISTING.values() for value in names.values())}
# Where the host cannot limit anything, being asked to is answered so (501), and tells nothing more.
LIMITS = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
turns = itertools.count()


@schemathesis.serializer("application/zstd")
def as_it_is(context, value):
    """Bodies that are no JSON: what was made up, which is never valid zstd."""
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def map_case(context, case):
    """But what others need is neither removed nor overwritten."""
    names = next((names for path, names in EXISTING.items() if case.operation.path.startswith(path)), {})
    given = case.path_parameters or {}
    if case.method.upper() in ("DELETE", "PUT"):
        for name in names:
            if given.get(name) in KEPT:
                given[name] = "nothing"
        return case
    if next(turns) % 2:
        return case
    for name, value in names.items():
        if name in given:
            given[name] = value
    if isinstance(case.body, dict) and isinstance(case.body.get("snapshot_tag"), str):
        # Not a thousand at once.
        n = case.body.get("n")
        if isinstance(n, int) and 2 < n <= 1000:
            case.body["n"] = 2
        case.body["snapshot_tag"] = "warm"
        if not LIMITS:
            case.body.pop("limits", None)
            case.body.pop("memory_limit_mib", None)
    return case
