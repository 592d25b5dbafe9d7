"""Output is not the work: a closed pipe, a full device or a terminal that knows few letters costs words, no results."""

import sys
from typing import TextIO


class Patient:
    """A text stream that falls silent once it cannot be written to, and escapes what it cannot encode."""

    def __init__(self, stream: TextIO):
        self.stream, self.silent = stream, False
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write, as long as that is possible."""
        return self._try(self.stream.write, text) or len(text)

    def flush(self) -> None:
        """Flush, as long as that is possible."""
        self._try(self.stream.flush)

    def _try(self, action, *arguments):
        if not self.silent:
            try:
                return action(*arguments)
            except (OSError, ValueError):  # a closed pipe, a full device, a closed stream
                self.silent = True
        return None


def patient() -> None:
    """Make the standard streams of this process patient."""
    sys.stdout, sys.stderr = (Patient(stream) if stream else stream for stream in (sys.stdout, sys.stderr))
