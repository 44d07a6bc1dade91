import collections
import threading
import time

import numpy

PAGE = 4096


class Ticker:
    """Holds memory, and notes the time every millisecond; with each tick it rewrites one page."""

    def __init__(self, mib):
        self.memory = numpy.zeros(mib << 17, dtype=numpy.uint64)
        # The first word of each page, and what it is counted by.
        self.words = self.memory[:: PAGE // 8]
        self.numbers = numpy.arange(1, len(self.words) + 1, dtype=numpy.uint64)
        self.ticks = collections.deque()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        count = 0
        while True:
            time.sleep(0.001)
            count += 1
            self.memory[count % len(self.words) * (PAGE // 8) + 1] = count
            self.ticks.append(time.monotonic())

    def rewrite(self):
        """Changes every page, each to something that no page was before."""
        self.numbers += numpy.uint64(len(self.words))
        self.words[:] = self.numbers
        return len(self.words) * PAGE

    def begin(self):
        """Forgets the ticks so far; what follows is the second before."""
        self.ticks = collections.deque()
        time.sleep(1.0)

    def end(self):
        """The longest gap since `begin`, and how often it ticked in the second before and the one after it."""
        time.sleep(1.0)
        ticks = list(self.ticks.copy())
        gap, at = max((later - tick, tick) for tick, later in zip(ticks, ticks[1:]))
        within = lambda begin, end: sum(begin <= tick <= end for tick in ticks)
        return {
            "gap_ms": gap * 1000,
            "ticks_before": within(at - 1.0, at),
            "ticks_after": within(at + gap, at + gap + 1.0),
        }
