"""Tests of the warm interpreter: `python3 -m unittest discover guest`. They speak to it as the agent does."""

import json
import os
import signal
import subprocess
import sys
import threading
import unittest

KERNEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel.py")
BOOT = "exec(compile(open(5).read(),'<forkd kernel>','exec'),{'__name__':'forkd_kernel'})"


class Interpreter:
    def __init__(self):
        request_read, self.requests = os.pipe()
        self.answers, answer_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        source = os.open(KERNEL, os.O_RDONLY)
        fds = [(request_read, 13), (answer_write, 14), (source, 15), (out_write, 11), (err_write, 12)]

        def place():
            lifted = [(os.dup(fd), target) for fd, target in fds]
            for fd, target in lifted:
                os.dup2(fd, target + 50)
            for _, target in lifted:
                os.dup2(target + 50, target - 10)

        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT], stdin=subprocess.DEVNULL, preexec_fn=place, close_fds=False,
            start_new_session=True)
        for fd, _ in fds:
            os.close(fd)
        self.output = {1: b"", 2: b""}
        self.threads = [threading.Thread(target=self.pump, args=pair) for pair in ((out_read, 1), (err_read, 2))]
        for thread in self.threads:
            thread.start()
        self.ready = self.receive()

    def pump(self, fd, which):
        while True:
            data = os.read(fd, 65536)
            if not data:
                os.close(fd)
                return
            self.output[which] += data

    def receive(self):
        size = int.from_bytes(self.read(4), "little")
        return json.loads(self.read(size))

    def read(self, count):
        data = b""
        while len(data) < count:
            part = os.read(self.answers, count - len(data))
            assert part, "the interpreter ended"
            data += part
        return data

    def send(self, **request):
        body = json.dumps(request).encode()
        os.write(self.requests, len(body).to_bytes(4, "little") + body)

    def ask(self, **request):
        self.send(**request)
        return self.receive()

    def run(self, code, settle=False):
        return self.ask(op="run", code=code, settle=settle)

    def close(self):
        os.close(self.requests)
        self.process.wait(10)
        os.close(self.answers)
        for thread in self.threads:
            thread.join()


class KernelTest(unittest.TestCase):
    def setUp(self):
        self.kernel = Interpreter()

    def tearDown(self):
        self.kernel.close()

    def test_ready(self):
        self.assertEqual(self.kernel.ready["kind"], "ready")

    def test_values_and_state(self):
        self.assertIsNone(self.kernel.run("x = 20\ny = 22")["result"])
        answer = self.kernel.run("z = x\nz + y")
        self.assertEqual((answer["result"], answer["result_json"], answer["error"]), ("42", "42", None))
        self.assertEqual(self.kernel.run("_ + 1")["result"], "43")
        self.assertIsNone(self.kernel.run("None")["result"])
        odd = self.kernel.run("{1, 2}")
        self.assertEqual((odd["result"], odd["result_json"]), ("{1, 2}", None))
        self.assertIsNone(self.kernel.run("float('nan')")["result_json"])
        self.assertEqual(self.kernel.run("'\\ud800'")["result"], "'\\ud800'")

    def test_namespace_is_main(self):
        self.assertEqual(self.kernel.run("__name__")["result"], "'__main__'")
        self.assertIsNone(self.kernel.run("class A: pass\nimport pickle\npickle.loads(pickle.dumps(A()))")["error"])
        self.assertEqual(self.kernel.run("sorted(k for k in globals() if not k.startswith('__'))")["result"],
                         "['A', 'pickle']")

    def test_errors_show_source_and_not_us(self):
        self.kernel.run("def f(a):\n    return 1 / a  # here\n")
        error = self.kernel.run("f(0)")["error"]
        self.assertEqual((error["name"], error["value"]), ("ZeroDivisionError", "division by zero"))
        self.assertIn("return 1 / a  # here", error["traceback"])
        self.assertNotIn("forkd kernel", error["traceback"])
        self.assertEqual(self.kernel.run("1 +")["error"]["name"], "SyntaxError")
        self.assertEqual(self.kernel.run("raise SystemExit(3)")["error"]["name"], "SystemExit")
        self.assertEqual(self.kernel.run("class E(Exception):\n def __str__(s): 1/0\nraise E")["error"]["name"], "E")
        self.assertEqual(self.kernel.run("class R:\n def __repr__(s): 1/0\nR()")["error"]["name"], "ZeroDivisionError")
        self.assertEqual(self.kernel.run("1")["result"], "1")

    def test_interrupts(self):
        os.kill(self.kernel.process.pid, signal.SIGINT)
        self.assertEqual(self.kernel.run("1")["result"], "1")
        self.kernel.send(op="run", code="import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
                         settle=False)
        self.assertEqual(self.kernel.receive()["error"]["name"], "KeyboardInterrupt")
        self.assertEqual(self.kernel.run("2")["result"], "2")

    def test_a_forked_child_does_not_answer(self):
        answer = self.kernel.run("import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\nchild > 0")
        self.assertEqual(answer["result"], "True")
        self.assertEqual(self.kernel.run("3")["result"], "3")

    def test_reseed(self):
        self.kernel.run("import random, tempfile, ssl, forkd\nseen = []\nforkd.after_fork(lambda: seen.append(1))")
        draw = "random.seed(1); a = random.random(); random.seed(1)"
        self.kernel.run(draw)
        self.assertIsNone(self.kernel.ask(op="reseed")["error"])
        self.assertEqual(self.kernel.run("random.random() == a, seen")["result"], "(False, [1])")
        self.kernel.run("@forkd.after_fork\ndef bad(): raise ValueError('no')")
        self.assertEqual(self.kernel.ask(op="reseed")["error"]["value"], "no")

    def test_reseed_in_the_middle_of_a_run(self):
        code = ("import random, os, signal, forkd\nseen = []\nforkd.after_fork(lambda: seen.append(1))\n"
                "random.seed(1); a = random.random(); random.seed(1)\n"
                "os.kill(os.getpid(), 44)\nrandom.random() == a, seen")
        self.kernel.send(op="run", code=code, settle=False)
        self.assertEqual(self.kernel.receive()["kind"], "reseeded")
        self.assertEqual(self.kernel.receive()["result"], "(False, [1])")

    def test_settle(self):
        self.assertIsNone(self.kernel.run("a = list(range(1000))", settle=True)["error"])
        self.assertEqual(self.kernel.run("a[-1]")["result"], "999")

    def test_closed_output_is_repaired(self):
        self.kernel.run("import os; os.close(1)")
        self.kernel.run("print('after'); os.system('echo child')")
        self.kernel.close()
        self.assertEqual(self.kernel.output[1], b"after\nchild\n")
        self.setUp()


if __name__ == "__main__":
    unittest.main()
