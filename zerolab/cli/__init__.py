"""The command line.

    zerolab memory --params 7e9 --ranks 64          what each strategy keeps on a rank
    zerolab traffic --params 7e9 --ranks 64         what each strategy sends in a step
    zerolab plan --model llama-2-7b --gpu h100-80gb --gpus 8 --link nvlink4    what fits, fastest
    zerolab compare --ranks 4                       train by each strategy, measure both
    zerolab train --strategy zero3                  train by one
    zerolab versus --ranks 2                        ZeRO-3 against tensor parallelism
    zerolab bench --pairs zero3/fsdp2               ours against the systems themselves
    zerolab check labs/01-memory-accounting.ipynb   grade a lab

Results go to standard output, progress to standard error. Exit status: 0; 1 where a lab is not
solved, a rank failed or nobody reads the output; 2 for wrong input; 130 when interrupted.

One file a command: `add` says what it takes, `run` does it. What needs torch is imported where it
is used: `memory` and `--help` must not wait for it.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence

from zerolab import __version__
from zerolab.accounting.errors import InputError, unknown_name
from zerolab.cli import bench, check, compare, memory, plan, traffic, train, versus
from zerolab.runtime.failure import RankError

COMMANDS = {
    "memory": memory,
    "traffic": traffic,
    "plan": plan,
    "compare": compare,
    "train": train,
    "versus": versus,
    "bench": bench,
    "check": check,
}
WITH_CSV = (memory, traffic, plan)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser, commands = parsers()
    try:
        if argv and not argv[0].startswith("-") and argv[0] not in commands:
            raise unknown_name("command", argv[0], commands)
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            options = re.findall(r"--[a-z-]+", commands[arguments.command].format_usage())
            raise unknown_name("option", unknown[0], options)
        return COMMANDS[arguments.command].run(arguments)
    except InputError as error:
        print(f"zerolab: {error}", file=sys.stderr)
        return 2
    except RankError as error:
        print(f"zerolab: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has gone, as in `zerolab plan … | head`. Nor can what is buffered be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("zerolab: interrupted", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage text."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """The command line's parser, and that of each command."""
    parser = _Parser(
        prog="zerolab",
        allow_abbrev=False,
        description="What DDP and ZeRO cost in memory and traffic: on paper, and measured.",
    )
    parser.add_argument("--version", action="version", version=f"zerolab {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands: dict[str, _Parser] = {}
    for name, command in COMMANDS.items():
        commands[name] = subparsers.add_parser(
            name, help=command.SUMMARY, description=f"{command.SUMMARY}.", allow_abbrev=False
        )
        formats = commands[name].add_mutually_exclusive_group()
        formats.add_argument("--json", action="store_true", help="print JSON instead")
        if command in WITH_CSV:
            formats.add_argument("--csv", action="store_true", help="print CSV instead")
        command.add(commands[name])
    return parser, commands
