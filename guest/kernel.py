"""The warm interpreter: evaluates code sent by the agent in one lasting namespace.

Started by the agent with the image's own python3. Descriptors: 3 requests, 4 answers, both a little-endian
length of four bytes followed by JSON; 1 and 2 are pipes that the agent reads, so that whatever writes to them (C
extensions and subprocesses as well) is captured. Only the standard library is used, in the oldest Python 3 that is
still met, and as few of its modules as possible: what is loaded here is in the memory of every child.
"""

import ast
import builtins
import gc
import json
import linecache
import os
import signal
import sys
import time
import traceback
import types

REQUESTS, ANSWERS = 3, 4
HERE = "<forkd kernel>"
# Most characters of one text in an answer.
CAP = 16 * 1024 * 1024
# Sources kept for tracebacks.
CELLS_KEPT = 1000
# Sent by the agent where a fork happened in the middle of a run. A real-time signal, by number: C libraries differ
# in where theirs begin.
RESEED_SIGNAL = 44


class Kernel:
    def __init__(self):
        self.pid = os.getpid()
        self.cells = []
        self.count = 0
        self.hooks = []
        self.sending = False
        self.reseed_deferred = False
        self.rich = None
        self.namespace = sys.modules["__main__"].__dict__

    # -- talking to the agent

    def receive(self):
        size = int.from_bytes(read_exactly(4), "little")
        return json.loads(read_exactly(size).decode("utf-8"))

    def send(self, answer):
        numpy = sys.modules.get("numpy")
        version = getattr(numpy, "__version__", None)
        answer["numpy_version"] = version if isinstance(version, str) else None
        # JSON escapes what UTF-8 cannot carry, such as lone surrogates.
        body = json.dumps(answer).encode("ascii")
        frame = len(body).to_bytes(4, "little") + body
        self.sending = True
        while frame:
            frame = frame[os.write(ANSWERS, frame):]
        self.sending = False
        if self.reseed_deferred:
            self.reseed_deferred = False
            self.on_reseed_signal()

    def serve(self):
        signal.signal(signal.SIGINT, ignore)
        signal.signal(RESEED_SIGNAL, self.on_reseed_signal)
        self.send({"kind": "ready", "python": sys.version.split()[0]})
        while True:
            request = self.receive()
            op = request["op"]
            if op == "run":
                answer = self.run(request["code"], request.get("rich"))
                if request["settle"]:
                    settle()
            else:
                answer = self.reseed()
            if os.getpid() != self.pid:
                # The code forked and its child fell out of it: that child is not the interpreter.
                os._exit(0)
            self.send(answer)

    # -- evaluating

    def run(self, code, rich=None):
        """With `rich` (the source of that module, and variables for this run) results are shown as in a notebook."""
        repair_output()
        started = time.perf_counter()
        answer = {"kind": "done", "result": None, "result_json": None, "error": None, "truncated": False}
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                if rich is None:
                    self.evaluate(code, answer)
                else:
                    self.evaluate_richly(code, answer, rich)
            finally:
                flush()
                signal.signal(signal.SIGINT, ignore)
        except BaseException as error:  # whatever the code raises must not end the interpreter
            while signal.getsignal(signal.SIGINT) is not ignore:
                try:
                    signal.signal(signal.SIGINT, ignore)
                except KeyboardInterrupt:
                    pass
            answer["result"] = answer["result_json"] = None
            answer["error"] = describe(error)
            flush()
        answer["micros"] = int((time.perf_counter() - started) * 1e6)
        return answer

    def parse(self, code):
        """Statements, the last expression where there is one, and the name of this code."""
        name = self.remember(code)
        tree = ast.parse(code, name, "exec")
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        return tree, last, name

    def evaluate(self, code, answer):
        tree, last, name = self.parse(code)
        exec(compile(tree, name, "exec"), self.namespace)
        if last is None:
            return
        value = eval(compile(last, name, "eval"), self.namespace)
        if value is None:
            return
        builtins._ = value
        text = repr(value)
        encoded = as_json(value)
        answer["truncated"] = len(text) > CAP or len(encoded or "") > CAP
        answer["result"] = text[:CAP]
        answer["result_json"] = encoded if encoded is not None and len(encoded) <= CAP else None

    def evaluate_richly(self, code, answer, rich):
        if self.rich is None:
            module = {"__name__": "forkd_rich"}
            exec(compile(rich["module"], HERE, "exec"), module)
            self.rich = module
            self.shown = module["Rich"](self.show)
        tree, last, name = self.parse(code)
        self.shown.begin(rich["env"])
        try:
            value = self.shown.execute(tree, last, name, self.namespace)
            if value is not None:
                builtins._ = value
                answer["bundle"] = self.rich["bundle"](value)
        finally:
            self.shown.end()

    def show(self, bundle):
        flush()
        self.send({"kind": "display", "bundle": bundle})

    def remember(self, code):
        """Lets tracebacks and inspect show the lines of code that lies in no file."""
        self.count += 1
        name = "<cell %d>" % self.count
        # A time of None keeps linecache from looking for a file.
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        self.cells.append(name)
        if len(self.cells) > CELLS_KEPT:
            linecache.cache.pop(self.cells.pop(0), None)
        return name

    # -- after a fork

    def reseed(self):
        error = None
        try:
            reseed_generators()
            for hook in self.hooks:
                hook()
        except BaseException as failure:
            error = describe(failure)
        flush()
        return {"kind": "reseeded", "error": error}

    def on_reseed_signal(self, *_):
        if self.sending:
            self.reseed_deferred = True
            return
        self.send(self.reseed())

    def after_fork(self, hook):
        """Calls `hook` in every child, before anything else runs in it; usable as a decorator."""
        if not callable(hook):
            raise TypeError("after_fork takes a callable")
        self.hooks.append(hook)
        return hook


class ForkdModule:
    """Makes `import forkd` work where no package of that name is installed: it is asked last."""

    def __init__(self, kernel):
        self.kernel = kernel

    def find_spec(self, name, path=None, target=None):
        if name != "forkd":
            return None
        from importlib.machinery import ModuleSpec
        return ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__doc__ = "What code in a sandbox can tell forkd."
        module.after_fork = self.kernel.after_fork


def ignore(*_):
    """An interrupt between two runs is meant for the one that just ended."""


def read_exactly(count):
    data = b""
    while len(data) < count:
        part = os.read(REQUESTS, count - len(data))
        if not part:
            # The agent is gone or wants no interpreter any more.
            os._exit(0)
        data += part
    return data


def as_json(value):
    try:
        return json.dumps(value, allow_nan=False)
    except KeyboardInterrupt:
        raise
    except Exception:
        return None


def describe(error):
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == HERE:
        trace = trace.tb_next
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except Exception:
        lines = ["(the traceback cannot be shown)\n"]
    try:
        value = str(error)
    except Exception:
        value = "(the message cannot be shown)"
    return {"name": type(error).__qualname__, "value": value[:CAP], "traceback": "".join(lines)[:CAP]}


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    if FLUSH_C is not None:
        FLUSH_C(None)


def repair_output():
    """Code may have closed descriptor 1 or 2; without this, its next file would take its place."""
    for target, saved in ((1, OUTPUT[0]), (2, OUTPUT[1])):
        try:
            os.fstat(target)
        except OSError:
            os.dup2(saved, target)


def settle():
    """After the warm-up: what lives now is out of the collector's sight, so that it does not touch its pages again."""
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()


def words(count):
    return [int.from_bytes(os.urandom(4), "little") for _ in range(count)]


def reseed_generators():
    """Generators that a module keeps for all its users. What code made itself (random.Random(), default_rng())
    only that code can reach: it registers with forkd.after_fork."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed(int.from_bytes(os.urandom(64), "little"))
    if "numpy.random" in modules:
        modules["numpy.random"].seed(words(16))
    if hasattr(modules.get("torch"), "manual_seed"):
        modules["torch"].manual_seed(int.from_bytes(os.urandom(7), "little"))
    if hasattr(modules.get("ssl"), "RAND_add"):
        modules["ssl"].RAND_add(os.urandom(64), 64.0)
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None


def c_flush():
    """fflush(NULL), for C extensions that print through the C library's own buffer."""
    try:
        import ctypes
        return ctypes.CDLL(None).fflush
    except Exception:
        return None


def fresh_main():
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [""]


for _fd in (REQUESTS, ANSWERS):
    os.set_inheritable(_fd, False)
OUTPUT = (os.dup(1), os.dup(2))
FLUSH_C = c_flush()
for _stream in (sys.stdout, sys.stderr):
    if hasattr(_stream, "reconfigure"):
        _stream.reconfigure(encoding="utf-8", errors="backslashreplace")
fresh_main()
KERNEL = Kernel()
sys.meta_path.append(ForkdModule(KERNEL))
KERNEL.serve()
