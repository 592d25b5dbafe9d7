#!/usr/bin/env python3
"""Execute the notebooks of this collection under supervision, record what came out, and say whether it still holds."""

import argparse
import sys
from datetime import datetime
from pathlib import Path

try:
    from lib.notebook.parameters import suggest
    from lib.runner import compare, execute, params, record, report, session
except ImportError as error:
    print(f"run_all.py: {error}; run `make setup`, then `.venv/bin/python run_all.py`", file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).resolve().parent
EPILOG = """\
A parameter has the value of the last of these that names it: the notebook's default, the preset's file, --params,
--set. A file name in a value (.npy, .npz) is relative to the parameters file. RUN is a folder, or its name in DIR.
Exit code: 0 all executed and every claim stands; 1 a notebook failed, a claim FAILs (with the paper preset: or is
INCONCLUSIVE), or a result drifted from the reference; 2 bad usage or parameters; 130, 143 interrupted.
"""


class Parser(argparse.ArgumentParser):
    """argparse with one line for an error."""

    def error(self, message: str):
        options = [word for action in self._actions for word in action.option_strings]
        unknown, _, words = message.partition("unrecognized arguments: ")
        self.exit(2, f"run_all.py: {message}{suggest(words.split()[0], options) if not unknown else ''}\n")


class Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=26, width=110)


def parser() -> argparse.ArgumentParser:
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
    how.add_argument("--timeout", type=_count, default=7200, metavar="S", help="deadline of a notebook (7200 s)")
    how.add_argument("--cell-timeout", type=_count, default=3600, metavar="S", help="deadline of a cell (3600 s)")
    how.add_argument(
        "--output-root", type=Path, default=ROOT / "outputs", metavar="DIR", help="where runs are kept (outputs)"
    )
    how.add_argument(
        "--compare",
        nargs="+",
        metavar="RUN",
        help="compare with RUN at the end (`reference`: the accepted one); two RUNs: compare those, run nothing",
    )
    instead = top.add_argument_group("instead of running").add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="the notebooks and how long each takes")
    instead.add_argument("--check", action="store_true", help="check notebooks and parameters")
    instead.add_argument("--describe", metavar="NN", help="the parameters of a notebook: types, defaults, help")
    instead.add_argument("--accept", metavar="RUN", help="make RUN the reference")
    return top


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is needed, received {text!r}")
    return int(text)


def find_run(word: str, root: Path) -> Path:
    for folder in (root / word, Path(word)):
        if (folder / "run.json").is_file():
            return folder.resolve()
    known = sorted((path.parent.name for path in root.glob("*/run.json")), reverse=True)
    raise params.UsageError(f"{word}: no such run{suggest(word, known)}")


def command(args: argparse.Namespace) -> int:
    root = args.output_root.resolve()
    if args.accept:
        run = find_run(args.accept, root)
        session.accept(run, [path.stem for path in params.select(ROOT)], root / "reference")
        print(f"{run.name} is now the reference")
        return 0
    others = [find_run(word, root) for word in args.compare or []]
    if len(others) > 2:
        raise params.UsageError("--compare: at most two runs")
    if len(others) == 2:
        rows, remarks = compare.compare(*others)
        print(report.comparison(rows, remarks, others[1].name))
        return int(any(row.drifted for row in rows))
    if args.resume:
        if args.preset or args.only or args.params or args.set:
            raise params.UsageError("--resume: goes with none of --preset --only --params --set; it repeats the run")
        args.resume = find_run(args.resume, root)
        if args.resume.name == "reference":
            raise params.UsageError("--resume: the reference is not resumed; make a new run and --accept it")
        before = record.read_json(args.resume / "run.json")
        preset, args.only = before["preset"], list(before["notebooks"])
        recorded = {
            name: params.Source(f"{args.resume.name}/run.json", entry["overrides"], args.resume / name)
            for name, entry in before["notebooks"].items()
        }
    else:
        preset, recorded = args.preset or "paper", None
    only = [args.describe] if args.describe else args.only
    tasks = params.plan(ROOT, preset, only, args.params, args.set, recorded)
    seconds = record.durations(root, preset)
    if args.describe:
        print(report.parameters(tasks[0]))
    elif args.list:
        print(report.listing(tasks, seconds))
    elif args.check:
        print(f"in order: {len(tasks)} notebooks with the {preset} preset")
    else:
        folder = args.resume or record.new_folder(root, preset, datetime.now())
        with record.locked(folder) as lock:
            started = session.Session(ROOT, folder, preset, tasks, lock)
            deadlines = {"timeout": args.timeout, "cell_timeout": args.cell_timeout}
            return started.run(args.jobs or execute.cores(), deadlines, seconds, others[0] if others else None)
    return 0


def main(argv: list[str] | None = None) -> int:
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
    sys.exit(main())
