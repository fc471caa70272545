"""What really crossed the wire: the kernel's byte counter of the loopback interface.

The ledger says what an algorithm sends; this says what was sent. The counter includes TCP/IP
headers (about 0.1 % of large messages) and the traffic of every process in the same network
namespace, so measure over many steps, or in a namespace of its own (`own_loopback`).
"""

import shutil
import subprocess
from pathlib import Path

_COUNTERS = Path("/proc/self/net/dev")  # of this process's network namespace
_NEW_NAMESPACE = ["unshare", "--net", "--map-root-user", "sh", "-c"]


def loopback_bytes() -> int | None:
    """Bytes sent over loopback since boot, or None where the system has no such counter."""
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        interface, _, numbers = line.partition(":")
        if interface.strip() == "lo":
            return int(numbers.split()[8])  # 8 fields received, then bytes sent
    return None


def own_loopback() -> list[str]:
    """The command that runs what follows with a loopback interface of its own; [] without one.

    A container that may not make namespaces, and every system but Linux, has none.
    """
    if not (shutil.which("unshare") and shutil.which("ip")):
        return []
    command = [*_NEW_NAMESPACE, 'ip link set lo up && exec "$@"', "sh"]
    trial = subprocess.run([*command, "true"], capture_output=True)
    return command if trial.returncode == 0 else []
