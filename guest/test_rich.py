"""Tests of rich results: `python3 -m unittest discover guest`."""

import base64
import os
import unittest

from test_kernel import Interpreter

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "rich.py"), encoding="utf-8") as source:
    MODULE = source.read()

# As much of matplotlib as its figures need to be taken over, for computers that have none.
PYPLOT = """
import sys, types
class Figure:
    _suptitle, texts = None, []
    def __init__(self, axes): self.axes = axes
    def get_axes(self): return self.axes
    def savefig(self, file, **_): file.write(b"PNG of %d" % len(self.axes))
matplotlib, pyplot, figure = (types.ModuleType(n) for n in ("matplotlib", "matplotlib.pyplot", "matplotlib.figure"))
figure.Figure = Figure
pyplot.figures = [Figure([1]), Figure([])]
pyplot.get_fignums = lambda: list(range(len(pyplot.figures)))
pyplot.figure = lambda number: pyplot.figures[number]
pyplot.close = lambda which: pyplot.figures.clear()
pyplot.switch_backend = lambda name: setattr(pyplot, "backend", name)
sys.modules.update({"matplotlib": matplotlib, "matplotlib.pyplot": pyplot, "matplotlib.figure": figure})
"""


class Rich(unittest.TestCase):
    def setUp(self):
        self.interpreter = Interpreter()
        self.addCleanup(self.interpreter.close)

    def run_code(self, code, **env):
        """The answer, and what was shown meanwhile."""
        self.interpreter.send(op="run", code=code, settle=False, rich={"module": MODULE, "env": env})
        shown = []
        while True:
            answer = self.interpreter.receive()
            if answer["kind"] == "done":
                return answer, shown
            self.assertEqual(answer["kind"], "display")
            shown.append(answer["bundle"])

    def test_the_last_expression_is_the_result_in_all_its_forms(self):
        answer, shown = self.run_code("[1, 2]")
        self.assertEqual((answer["bundle"], shown), ({"text": "[1, 2]", "json": [1, 2]}, []))
        self.assertEqual(self.run_code("'text'")[0]["bundle"], {"text": "text"})
        self.assertNotIn("bundle", self.run_code("x = 1")[0])
        self.assertEqual(self.run_code("x + 1")[0]["bundle"]["text"], "2")
        code = (
            "class Shown:\n"
            "    def _repr_html_(self): return '<b>'\n"
            "    def _repr_png_(self): return b'png', {'width': 1}\n"
            "    def _repr_json_(self): return {'a': 1}\n"
            "    def _repr_latex_(self): raise ValueError\n"
            "    def _repr_markdown_(self): return None\n"
            "    def __repr__(self): return 'shown'\n"
            "Shown()")
        png = base64.b64encode(b"png").decode()
        self.assertEqual(
            self.run_code(code)[0]["bundle"], {"text": "shown", "html": "<b>", "png": png, "json": {"a": 1}})
        code = (
            "class Mime:\n"
            "    def _repr_mimebundle_(self, **_):\n"
            "        return {'text/plain': 'p', 'image/svg+xml': '<svg>', 'application/x-own': 1}\n"
            "Mime()")
        self.assertEqual(
            self.run_code(code)[0]["bundle"], {"text": "p", "svg": "<svg>", "extra": {"application/x-own": 1}})

    def test_what_is_displayed_comes_before_the_result(self):
        answer, shown = self.run_code("display('a', 2)\ndisplay({'text/html': '<i>'}, raw=True)\n3")
        self.assertEqual(shown, [{"text": "a"}, {"text": "2"}, {"html": "<i>"}])
        self.assertEqual(answer["bundle"]["text"], "3")

    def test_await_needs_no_function_and_state_is_kept(self):
        answer, _ = self.run_code("import asyncio\nasync def twice(n):\n    await asyncio.sleep(0)\n    return 2 * n\nawait twice(4)")
        self.assertEqual(answer["bundle"]["text"], "8")
        self.assertEqual(self.run_code("y = await twice(5)\ny")[0]["bundle"]["text"], "10")
        self.assertEqual(self.interpreter.run("y")["result"], "10")

    def test_variables_are_those_of_one_run(self):
        answer, _ = self.run_code("import os\nos.environ['A'], os.environ['HOME']", A="1", HOME="/h")
        self.assertEqual(answer["bundle"]["text"], "('1', '/h')")
        self.assertEqual(self.run_code("raise ValueError(os.environ.get('A'))", A="2")[0]["error"]["value"], "2")
        answer, _ = self.run_code("os.environ.get('A'), os.environ['HOME'] == '/h'")
        self.assertEqual(answer["bundle"]["text"], "(None, False)")

    def test_figures_are_shown_without_being_asked_for(self):
        answer, shown = self.run_code(PYPLOT)
        self.assertIsNone(answer["error"])
        self.assertEqual([base64.b64decode(one["png"]) for one in shown], [b"PNG of 1"])
        # They were closed, and asking for them shows new ones at once.
        _, shown = self.run_code("pyplot.figures.append(Figure([1, 2]))\ndisplay('x')")
        self.assertEqual([one.get("text") for one in shown][0], "x")
        self.assertEqual(base64.b64decode(shown[1]["png"]), b"PNG of 2")

    def test_failures_keep_what_was_shown(self):
        answer, shown = self.run_code("display(1)\n1 / 0")
        self.assertEqual((answer["error"]["name"], len(shown)), ("ZeroDivisionError", 1))
        self.assertNotIn("rich", answer["error"]["traceback"])
        self.assertEqual(self.run_code("class Odd:\n    def __repr__(self): 1 / 0\nOdd()")[0]["bundle"], {"text": ""})


if __name__ == "__main__":
    unittest.main()
