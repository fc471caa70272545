"""What the fork server imports before it forks its first rank. Nothing else imports this module.

Whatever is loaded here, no rank has to load.
"""

import atexit
import os

from zerolab.runtime.launch import CALLER, die_with_parent

# While it imports, the server does not look at the pipe that tells it that its parent has gone.
die_with_parent(True)
if os.environ[CALLER] != str(os.getppid()):
    os._exit(0)  # it had gone before we asked

import cloudpickle  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401

import zerolab.runtime.collectives  # noqa: E402
import zerolab.runtime.rank  # noqa: E402
import zerolab.runtime.shipping  # noqa: E402, F401

# The kernel ends ranks that cannot end themselves when the server has: let that not take long.
atexit.register(os._exit, 0)

# From here on it looks at the pipe. And to Linux the parent is the *thread* that started us, which
# may end before its process.
die_with_parent(False)
