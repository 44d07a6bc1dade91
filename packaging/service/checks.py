#!/usr/bin/env python3
"""What others make of the service: programs as they come from their registries, against a controller without KVM.

    packaging/service/checks.py FOLDER CONTROLLER [CHECK...]

FOLDER keeps what is installed. CONTROLLER is the example `furnished` of the controller: it prints its address and ends
with its standard input. Each check has a controller of its own, and prints one line.
"""

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import prometheus
import schemathesis

CHECKS = {"prometheus": prometheus, "schemathesis": schemathesis}


@contextmanager
def controller(program):
    """The address of a controller that runs meanwhile."""
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"{program} did not start")
        yield address
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def main():
    folder, program = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    failed = False
    for name in sys.argv[3:] or CHECKS:
        place, check = folder / name, CHECKS[name]
        place.mkdir(parents=True, exist_ok=True)
        print(f"{name}: {check.install(place)}", flush=True)
        began = time.monotonic()
        try:
            with controller(program) as address:
                check.run(place, address)
            outcome = "ok"
        except Exception as e:  # a check fails by whatever it raises
            print(f"{name}: {type(e).__name__}: {e}", flush=True)
            outcome, failed = "FAILED", True
        print(f"{outcome} service {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
