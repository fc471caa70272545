"""A kernel to run a reader's code in: fresh, elsewhere, and for a limited time.

What the code shows is not received at all, so endless output costs nothing here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from subprocess import DEVNULL
from time import monotonic

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import KernelManager

from zerolab.accounting.errors import InputError

START_LIMIT = 120.0  # seconds for the kernel to come up
GRACE = 10.0  # seconds for interrupted code to come to rest


class Kernel:
    """Runs one piece of code after the other, until it is lost."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client
        self.lost = False  # it has died, or nothing but killing it would stop the code

    def run(self, code: str, seconds: float) -> str | None:
        """What went wrong, as the end of a sentence about the code; None if nothing did.

        After `seconds` the code is interrupted. If that does not stop it, the kernel is lost.
        """
        sent = self._client.execute(code, allow_stdin=False, stop_on_error=False)
        reply = self._reply(sent, seconds)
        if reply is None and self._manager.is_alive():
            self._manager.interrupt_kernel()
            if self._reply(sent, GRACE):
                return f"took longer than {seconds:g} s"
        if reply is None:
            self.lost = True
            alive = self._manager.is_alive()
            return "could not be interrupted" if alive else "ended the kernel"
        if reply["status"] == "ok":
            return None
        return " ".join(f"raised {reply['ename']}: {reply['evalue']}".split())

    def _reply(self, sent: str, seconds: float) -> dict | None:
        deadline = monotonic() + seconds
        while self._manager.is_alive() and (left := deadline - monotonic()) > 0:
            try:
                message = self._client.get_shell_msg(timeout=min(left, 0.5))
            except Empty:
                continue
            if message["parent_header"].get("msg_id") == sent:
                return message["content"]
        return None


@contextmanager
def fresh_kernel(folder: Path) -> Iterator[Kernel]:
    """A kernel of this interpreter that starts in `folder` and ends with the block.

    Raises InputError where none is installed, RuntimeError where it does not start.
    """
    manager = KernelManager(kernel_name="python3")
    try:
        manager.start_kernel(cwd=str(folder), stdout=DEVNULL, stderr=DEVNULL)
    except NoSuchKernel:
        accepted = "one that is installed: pip install ipykernel, beside zerolab"
        raise InputError("kernel", "python3", accepted) from None
    client = manager.client()
    client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=False)
    kernel = Kernel(manager, client)
    try:
        # Else exit() in a cell would end the kernel after it, for all the cells to come.
        trouble = kernel.run("get_ipython().ask_exit = lambda: None", START_LIMIT)
        if trouble:
            raise RuntimeError(
                f"the Jupyter kernel python3 does not start: it {trouble}. "
                "Is ipykernel installed beside zerolab?"
            )
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
