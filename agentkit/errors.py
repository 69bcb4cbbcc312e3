"""Layer: words. One error class for each boundary, one line for each error.

Every message follows ``<where>: <what was got>; expected <what>; <what to do next>``, so that a
reader of a log or of a notebook needs no traceback to act.
"""

from __future__ import annotations


class KitError(Exception):
    """Base of all errors that the kit raises on purpose.

    Args:
        where: the file, field, process or address at fault.
        got: what was found there.
        expected: what should have been found.
        todo: what the user can do next.
    """

    def __init__(self, where: str, got: str, expected: str = "", todo: str = "") -> None:
        self.where, self.got, self.expected, self.todo = where, got, expected, todo
        line = f"{where}: {got}"
        if expected:
            line += f"; expected {expected}"
        if todo:
            line += f"; {todo}"
        super().__init__(" ".join(line.split("\n")))

    def _render_traceback_(self) -> list[str]:
        """IPython hook: a notebook shows the one line instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class ParamsError(KitError):
    """A parameter file, a parameters cell or a parameter value is wrong."""


class RunError(KitError):
    """A run directory cannot be used: other parameters, in use, torn, or no space left."""


class TaskError(KitError):
    """A task directory or task set is malformed."""


class TraceError(KitError):
    """A trajectory file is torn, foreign or too large; the other files of the set go on."""


class ModelError(KitError):
    """A model or adapter folder is incomplete or does not fit."""


class EngineError(KitError):
    """The inference engine did not start, died, or answered wrongly."""


class GatewayError(KitError):
    """The gateway could not be started or was asked for an unknown session."""


class SandboxError(KitError):
    """A sandbox could not be made or broke for a reason outside the agent."""


class HarnessError(KitError):
    """A harness is not installed or did not run for a reason outside the policy."""


class TrainingError(KitError):
    """The trainer cannot go on: engine and trainer disagree, no usable rows, bad checkpoint."""
