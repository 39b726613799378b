"""``python -m eval.certificate model.cert``: levels 1 and 2 with numpy alone; ``compress recheck`` does all of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.certificate.rechecking import LEVELS, recheck
from eval.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a certificate.

    Args:
        arguments: Those of the command line; None takes its own.

    Returns:
        The exit code of the word (see ``eval.certificate.findings.EXIT_CODES``); 2 for an error in the arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m eval.certificate", description=main.__doc__.splitlines()[0])
    parser.add_argument("certificate", type=Path)
    parser.add_argument("--model", type=Path, help="folder of the certified model")
    parser.add_argument("--teacher", type=Path, action="append", default=[], help="folder of the teacher")
    parser.add_argument("--level", type=int, default=LEVELS[-1], help="the last level that is asked for")
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args(arguments)
    try:
        found = recheck(asked.certificate, model=asked.model, teacher=asked.teacher, level=asked.level)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{json.dumps(found.to_dict(), indent=2) if asked.json else found}\n")
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
