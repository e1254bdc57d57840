"""`python -m cmm.report FILE`: print the summary of a report and exit with the job's exit code.

Exit code 66 when there is no such file and 65 when it is no report, as everywhere; `--json` prints the report itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cmm.core.errors import CmmError, ExitCode
from cmm.core.options import Parser
from cmm.runtime import launch
from cmm.runtime.report import load, summary_lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the summary of the report that `argv` names; returns the exit code."""
    launch.open_streams()
    parser = Parser(prog="python -m cmm.report", description="Print the summary of a report of cmm and exit with the "
                    "exit code of its job.")  # fmt: skip
    parser.add_argument("file", metavar="FILE", help="the file that --report named")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    try:
        given = parser.parse_args(argv)
        record = load(given.file)
    except SystemExit:  # --help
        return int(ExitCode.COMPLETE)
    except CmmError as error:
        print(f"cmm: {error}", file=sys.stderr)
        return int(error.exit_code)
    try:
        print(record.to_json() if given.json else "\n".join(summary_lines(record)), flush=True)
    except OSError as error:  # the exit code tells the rest
        launch.forget_stdout()
        if not isinstance(error, BrokenPipeError):  # whose reader has read enough
            launch.say(f"cmm: the summary cannot be printed: {error.strerror}")
    return int(record.exit_code)


if __name__ == "__main__":
    sys.exit(main())
