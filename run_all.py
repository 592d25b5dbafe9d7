#!/usr/bin/env python3
"""Execute the notebooks of this collection under supervision, record what came out, and say whether it still holds."""

import argparse
import os
import sys
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # the lib beside this file, whatever is installed

try:
    from lib.notebook.parameters import suggest
    from lib.runner import compare, cost, execute, files, params, report, session, terminal
except ImportError as error:
    print(f"run_all.py: {error}; run `make setup`, then `.venv/bin/python run_all.py`", file=sys.stderr)
    sys.exit(2)

EPILOG = """\
A parameter has the value of the last of these that names it: the notebook's default, the preset's file, --params,
--set. A file name in a value (.npy, .npz) is relative to the parameters file, in --set to where you are. RUN is a
folder, or its name in DIR.
Exit code: 0 all executed and every claim stands; 1 a notebook failed, a claim FAILs (with the paper preset: or is
INCONCLUSIVE), or a result differs from the reference; 2 bad usage or parameters; 130, 143 interrupted.
"""


class Parser(argparse.ArgumentParser):
    """argparse with one line for an error."""

    def error(self, message: str):
        """Say what is wrong, with the nearest option for one that is unknown, and exit."""
        options = [word for action in self._actions for word in action.option_strings]
        unknown, _, words = message.partition("unrecognized arguments: ")
        self.exit(2, f"run_all.py: {message}{suggest(words.split()[0], options) if not unknown else ''}\n")


class Help(argparse.RawDescriptionHelpFormatter):
    """The help, on one screen."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=26, width=110)


def parser() -> argparse.ArgumentParser:
    """The options and their help."""
    top = Parser(
        usage="run_all.py [options]", description=__doc__, epilog=EPILOG, formatter_class=Help, allow_abbrev=False
    )
    what = top.add_argument_group("what to run")
    what.add_argument("--preset", choices=params.PRESETS, help="full resolution (the default), or a check in seconds")
    what.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="NN", help="these notebooks, by number or name"
    )
    what.add_argument(
        "--params",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="parameters of the notebook that FILE is named after (02_name.yaml), or of the only one selected",
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="[NN.]key=value",
        help="a parameter of every selected notebook that has it, or of NN alone; the value is YAML",
    )
    what.add_argument(
        "--resume", metavar="RUN", help="continue RUN: repeat what is not ok or has changed since, keep the rest"
    )
    how = top.add_argument_group("how")
    how.add_argument("--jobs", type=_count, metavar="N", help="notebooks at a time (default: one a core)")
    how.add_argument("--yes", action="store_true", help="start what may take more than an hour, too")
    how.add_argument("--timeout", type=_count, default=7200, metavar="S", help="deadline of a notebook (7200 s)")
    how.add_argument("--cell-timeout", type=_count, default=3600, metavar="S", help="deadline of a cell (3600 s)")
    how.add_argument(
        "--output-root", type=Path, default=ROOT / "outputs", metavar="DIR", help="where runs are kept (outputs)"
    )
    how.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="RUN",
        help="compare with RUN at the end (`reference`: the accepted one); two RUNs: compare those, run nothing",
    )
    others = top.add_argument_group("instead of running")
    instead = others.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="the notebooks and how long each takes")
    instead.add_argument("--check", action="store_true", help="check notebooks and parameters")
    instead.add_argument("--describe", metavar="NN", help="the parameters of a notebook: types, defaults, help")
    instead.add_argument(
        "--accept", metavar="RUN", help="make RUN, a paper run in which every claim stands, the reference"
    )
    others.add_argument("--force", action="store_true", help="with --accept: whatever RUN is, as long as it is ok")
    return top


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is needed, received {text!r}")
    return int(text)


def accept(args: argparse.Namespace) -> int:
    """Make a run the reference."""
    run = files.find(args.accept, args.output_root)
    session.accept(run, [path.stem for path in params.select(ROOT)], args.output_root / "reference", args.force)
    print(f"{run.name} is now the reference")
    return 0


def compare_two(args: argparse.Namespace) -> int:
    """Compare a run with another, both as they are on disk."""
    run, base = args.compare
    rows, remarks = compare.compare(run, base)
    print(report.comparison(rows, remarks, base.name))
    return int(any(row.differs for row in rows))


def describe(args: argparse.Namespace) -> int:
    """Print the parameters of one notebook."""
    _, (task,) = planned(args, [args.describe])
    print(report.parameters(task))
    return 0


def list_notebooks(args: argparse.Namespace) -> int:
    """Print the notebooks and how long each takes."""
    preset, tasks = planned(args, args.only)
    print(report.listing(tasks, files.durations(args.output_root, preset)))
    return 0


def check(args: argparse.Namespace) -> int:
    """Print that all is in order: what is not has been refused by then."""
    preset, tasks = planned(args, args.only)
    print(f"in order: {len(tasks)} notebooks with the {preset} preset")
    for line in cost.told(tasks, files.durations(args.output_root, preset)):
        print(line)
    return 0


def run(args: argparse.Namespace) -> int:
    """Execute a new run, or what is left of a resumed one."""
    preset, tasks = planned(args, args.only)
    seconds = files.durations(args.output_root, preset)
    for line in cost.told(tasks, seconds):
        print(line)
    most = max(cost.longest(tasks, seconds).values(), default=0.0)
    if most > cost.LONG and not args.yes and sys.stdin and sys.stdin.isatty():
        raise params.UsageError(f"this may take up to {report.clock(most)}; --yes starts it all the same")
    deadlines = {"timeout": args.timeout, "cell_timeout": args.cell_timeout}
    folder = args.resume or files.new_folder(args.output_root, preset, datetime.now())
    with files.locked(folder) as lock:
        started = session.Session.read(ROOT, folder, lock, preset, tasks)
        return started.run(args.jobs or execute.cores(), deadlines, seconds, next(iter(args.compare), None))


def planned(args: argparse.Namespace, only: list[str]) -> tuple[str, list[params.Task]]:
    """The preset and the checked notebooks: of a new run, or of the one that is resumed."""
    if not args.resume:
        preset = args.preset or "paper"
        return preset, params.plan(ROOT, preset, only, args.params, args.set)
    before = files.record(args.resume)
    recorded = {
        name: params.Source(f"{args.resume.name}/run.json", entry["overrides"], args.resume / name)
        for name, entry in before["notebooks"].items()
    }
    return before["preset"], params.plan(ROOT, before["preset"], only or list(recorded), recorded=recorded)


def resumed(args: argparse.Namespace) -> Path:
    """The folder of the run to be resumed, which takes nothing that would make it another run."""
    if args.preset or args.only or args.params or args.set:
        raise params.UsageError("--resume: goes with none of --preset --only --params --set; it repeats the run")
    folder = files.find(args.resume, args.output_root)
    if folder.name == "reference":
        raise params.UsageError("--resume: the reference is not resumed; make a new run and --accept it")
    return folder


def command(args: argparse.Namespace) -> int:
    """Name the runs that are meant, and do the one thing that is asked for. Returns the exit code."""
    empty = [name for name in ("resume", "accept", "describe") if getattr(args, name) == ""]
    empty += [name for name in ("only", "set", "compare") if "" in getattr(args, name)]
    if empty:  # as an unset variable of the shell leaves them
        raise params.UsageError(f"--{empty[0]}: was given an empty word")
    args.output_root = args.output_root.resolve()
    if args.force and not args.accept:
        raise params.UsageError("--force: goes with --accept alone")
    if args.accept:
        return accept(args)
    args.compare = [files.find(word, args.output_root) for word in args.compare]
    if len(args.compare) > 2:
        raise params.UsageError("--compare: at most two runs")
    if len(args.compare) == 2:
        return compare_two(args)
    if args.resume:
        args.resume = resumed(args)
    instead = {"describe": describe, "list": list_notebooks, "check": check}
    return next((action for name, action in instead.items() if getattr(args, name)), run)(args)


def main(argv: list[str] | None = None) -> int:
    """Run the command, with one line for what goes wrong. Returns the exit code."""
    args = parser().parse_args(argv)
    try:
        return command(args)
    except params.UsageError as error:
        print(*error.args, sep="\n", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # a full disk, a folder that cannot be written
        print(f"run_all.py: {error.strerror}: {error.filename}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    terminal.patient()
    try:
        code = main()
    except SystemExit as stop:  # of argparse
        code = stop.code
    for stream in filter(None, (sys.stdout, sys.stderr)):  # closed ones are None
        stream.flush()
    os._exit(code or 0)  # without the interpreter's own flush, which complains about a closed pipe
