"""Java for tests, without its second compiler: they end before its work pays."""

import sys

#: Variables of the environment of a process with a JVM; none where figures are recorded, which are of Java as it is.
QUICK_JAVA = {} if "--record-faults" in sys.argv else {"_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}


def without_notes(errors: str) -> str:
    """Leave out of a process's stderr the lines by which each JVM says that it has read the variable."""
    return "".join(line for line in errors.splitlines(True) if not line.startswith("Picked up _JAVA_OPTIONS"))
