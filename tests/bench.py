"""``make bench``: what the kit itself costs, side by side in one run.

Gateway: the same requests straight to an endpoint and through it. Sessions: the kit's sandboxed
session beside plain pi on the host. Ratios carry over between machines; seconds do not.
"""

from __future__ import annotations

import argparse
import sys

from tests import bench_gateway, bench_sessions


def main() -> int:
    """Command line; returns 0. Nothing is asserted: a busy machine is not a fault of the code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the repetitions")
    quick = parser.parse_args().quick
    print("gateway")
    print(bench_gateway.report(bench_gateway.measure(100 if quick else 320)), flush=True)
    print("sessions")
    measured = bench_sessions.measure(5, 3) if quick else bench_sessions.measure()
    print(bench_sessions.report(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
