"""Rich results of the warm interpreter: what notebooks show. Loaded when the first code is run whose results are to be
shown, so that interpreters that only evaluate do not carry it in their memory.
"""

import ast
import base64
import builtins
import importlib.util
import io
import json
import os
import sys

TOP_LEVEL_AWAIT = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
IS_COROUTINE = 0x80
# Most characters of one representation.
CAP = 16 * 1024 * 1024
# How a value is asked for each of its forms, and what the form is called in a result.
METHODS = {
    "html": "_repr_html_", "markdown": "_repr_markdown_", "svg": "_repr_svg_", "png": "_repr_png_",
    "jpeg": "_repr_jpeg_", "pdf": "_repr_pdf_", "latex": "_repr_latex_", "json": "_repr_json_",
    "javascript": "_repr_javascript_",
}
MIME_TYPES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript",
}


class Rich:
    def __init__(self, send):
        """`send` takes a bundle that is to be shown at once."""
        self.send = send
        self.loop = None
        self.replaced = {}
        builtins.display = self.display
        if "matplotlib.pyplot" in sys.modules:
            self.adopt(sys.modules["matplotlib.pyplot"])
        else:
            sys.meta_path.insert(0, Pyplot(self.adopt))

    # -- running

    def begin(self, env):
        self.replaced = {name: os.environ.get(name) for name in env}
        os.environ.update(env)

    def end(self):
        """After a run, however it went."""
        for name, value in self.replaced.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.replaced = {}
        self.show()

    def execute(self, tree, last, name, namespace):
        """Runs statements and then, where there is one, the last expression; its value."""
        self.run(compile(tree, name, "exec", TOP_LEVEL_AWAIT), namespace)
        return self.run(compile(last, name, "eval", TOP_LEVEL_AWAIT), namespace) if last is not None else None

    def run(self, code, namespace):
        value = eval(code, namespace)
        if not code.co_flags & IS_COROUTINE:
            return value
        import asyncio
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(value)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            raise

    # -- showing

    def display(self, *values, raw=False, **_):
        """Shows values as they would be shown as results; with `raw` each is a dictionary by MIME type."""
        for value in values:
            self.send(named(value) if raw and isinstance(value, dict) else bundle(value))

    def adopt(self, pyplot):
        """Figures are shown as results, and there is no window to wait for."""
        if not os.environ.get("DISPLAY") and not os.environ.get("MPLBACKEND"):
            pyplot.switch_backend("agg")
        pyplot.show = self.show

    def show(self, *_, **__):
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            # An empty figure shows nothing.
            if figure.get_axes() or figure.texts:
                self.send(picture(figure))
        pyplot.close("all")


class Pyplot:
    """Takes over pyplot as soon as it has been imported."""

    def __init__(self, adopt):
        self.adopt = adopt

    def find_spec(self, name, path=None, target=None):
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_adopt(module):
            execute(module)
            self.adopt(module)

        spec.loader.exec_module = then_adopt
        return spec


def bundle(value):
    """All forms of a value, by name; `text` is always among them."""
    made = {}
    ask = getattr(value, "_repr_mimebundle_", None)
    if callable(ask) and not isinstance(value, type):
        made.update(named(attempt(ask)))
    for name, method in METHODS.items():
        ask = getattr(value, method, None)
        if name not in made and callable(ask) and not isinstance(value, type):
            made.update(form(name, attempt(ask)))
    if is_figure(value):
        made.update(picture(value))
    # A text is shown as it is.
    made.setdefault("text", value if isinstance(value, str) else attempt(lambda: repr(value)) or "")
    if isinstance(value, (dict, list, tuple)) and "json" not in made:
        made.update(form("json", attempt(lambda: json.loads(json.dumps(value, allow_nan=False)))))
    if hasattr(value, "to_dict") and type(value).__name__ == "DataFrame":
        table = attempt(lambda: json.loads(value.to_json(orient="columns")))
        if table is not None:
            made["data"] = {column: list(rows.values()) for column, rows in table.items()}
    return {name: part[:CAP] if isinstance(part, str) else part for name, part in made.items()}


def named(mimebundle):
    """A dictionary by MIME type as one by the names of forms."""
    if isinstance(mimebundle, tuple):
        mimebundle = mimebundle[0]
    made = {}
    for kind, data in (mimebundle or {}).items():
        if kind in MIME_TYPES:
            made.update(form(MIME_TYPES[kind], data))
        else:
            made.setdefault("extra", {})[str(kind)] = data if is_plain(data) else str(data)
    return made


def form(name, data):
    if isinstance(data, tuple):
        data = data[0]
    if data is None:
        return {}
    if isinstance(data, (bytes, bytearray)):
        data = base64.b64encode(data).decode("ascii")
    if name == "json":
        return {name: data} if is_plain(data) else {}
    return {name: data if isinstance(data, str) else str(data)}


def is_plain(data):
    return attempt(lambda: json.dumps(data, allow_nan=False)) is not None


def attempt(ask):
    """None where a value cannot be shown so."""
    try:
        return ask()
    except KeyboardInterrupt:
        raise
    except Exception:
        return None


# -- figures

def is_figure(value):
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def picture(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    made = {"png": base64.b64encode(file.getvalue()).decode("ascii"), "text": repr(figure)}
    chart = attempt(lambda: chart_of(figure))
    if chart is not None and is_plain(chart):
        made["chart"] = chart
    return made


def chart_of(figure):
    charts = [chart for chart in map(chart_of_axes, figure.axes) if chart is not None]
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else None
    return {"type": "superchart", "title": title, "elements": charts} if charts else None


def chart_of_axes(axes):
    kind, elements = elements_of(axes)
    if kind is None:
        return None
    chart = {"type": kind, "title": axes.get_title() or None, "elements": elements}
    if kind != "pie":
        for side in ("x", "y"):
            ticks = getattr(axes, "get_%sticks" % side)()
            labels = getattr(axes, "get_%sticklabels" % side)()
            text, unit = label_and_unit(getattr(axes, "get_%slabel" % side)())
            chart.update({
                side + "_label": text, side + "_unit": unit, side + "_scale": getattr(axes, "get_%sscale" % side)(),
                side + "_ticks": numbers(ticks), side + "_tick_labels": [label.get_text() for label in labels],
            })
    return chart


def elements_of(axes):
    kinds = {type(patch).__name__ for patch in axes.patches}
    if "Wedge" in kinds:
        texts = [text.get_text() for text in axes.texts]
        wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
        return "pie", [
            {"label": patch.get_label() if not patch.get_label().startswith("_") else "".join(texts[n:n + 1]),
             "angle": float(abs(patch.theta2 - patch.theta1)), "radius": float(patch.r)}
            for n, patch in enumerate(wedges)
        ]
    if axes.containers and "Rectangle" in kinds:
        labels = [label.get_text() for label in axes.get_xticklabels()]
        return "bar", [
            {"label": "".join(labels[n:n + 1]), "group": str(group.get_label()), "value": float(bar.get_height())}
            for group in axes.containers for n, bar in enumerate(getattr(group, "patches", []))
        ]
    if axes.collections and not axes.lines:
        return "scatter", [
            {"label": str(points.get_label()), "points": [numbers(point) for point in points.get_offsets()]}
            for points in axes.collections if hasattr(points, "get_offsets")
        ]
    if axes.lines:
        return "line", [
            {"label": str(line.get_label()), "points": [list(p) for p in zip(values(line.get_xdata()), values(line.get_ydata()))]}
            for line in axes.lines
        ]
    return None, []


def label_and_unit(text):
    """`Speed (m/s)` has a unit."""
    if text.endswith(")") and "(" in text:
        label, unit = text[:-1].rsplit("(", 1)
        return label.strip() or None, unit.strip() or None
    return text or None, None


def numbers(values_):
    return [float(value) for value in values_]


def values(data):
    """Numbers as they are, dates and names as text."""
    return [float(v) if isinstance(v, (int, float)) or hasattr(v, "__float__") else str(v) for v in data]
