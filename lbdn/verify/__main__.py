r"""Check a run's certificate: ``python -m lbdn.verify RUN``.

Ends in "holds" and exit status 0, in the first thing that doesn't and status 1, or in what isn't covered and status 3.
A status of 2 is a call that isn't understood, or a folder without a certificate or weights.
"""

import sys
from pathlib import Path

from lbdn.verify.certificate import RejectedError, check
from lbdn.verify.layers import NotCoveredError


def main(arguments: list[str]) -> int:
    """Check the run that the arguments name; print what was found; return the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m lbdn.verify RUN\n\nRUN is the folder of a run, with certificate.json and weights.pt.")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    try:
        for line in check(Path(arguments[0])):
            print(line)
    except NotCoveredError as error:
        print(f"not covered: {error}")
        return 3
    except FileNotFoundError as error:
        print(f"nothing to check: no {error.filename}")
        return 2
    except (RejectedError, ValueError, KeyError, TypeError) as error:
        print(f"does not hold: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
