"""What the fork server imports before it forks its first rank. Nothing else imports this module.

Whatever is loaded here, no rank has to load.
"""

import signal

from zerolab.runtime.launch import die_with_parent

# Ctrl-C in a terminal reaches every process of the group: it is the caller's to answer. Ranks
# inherit this from their first instruction on.
signal.signal(signal.SIGINT, signal.SIG_IGN)

# While it imports, the server does not look at the pipe that tells it that its parent has gone.
die_with_parent(True)

import cloudpickle  # noqa: E402, F401
import torch.distributed  # noqa: E402, F401

import zerolab.runtime.rank  # noqa: E402
import zerolab.runtime.shipping  # noqa: E402, F401

# From here on it does; and Linux would mean the parent's *thread*, which may well end before it.
die_with_parent(False)
