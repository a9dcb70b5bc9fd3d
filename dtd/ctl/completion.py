"""Completion in a shell: commands, options, and names that the coordinator knows.

The shell's function calls dtdctl with the line so far in `VARIABLE`; the answers are whole words,
one a line.  Nothing fails here: where no name is known, the shell completes files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dtd.ctl.command_line import Argument, Command, flags_of
from dtd.ctl.settings import FORMS, FORMS_OF, OPTIONS, make_settings, take_settings
from dtd.errors import DtdError, UsageError
from dtd.event_names import INCIDENTS
from dtd.wire import messages as m

VARIABLE: Final = "_DTDCTL_COMPLETE"
_PATIENCE_S: Final = 1.0

# bash itself breaks words at "=", ":" and "@", and replaces only what follows the last of them.
SCRIPTS: Final = {
    "bash": """\
_dtdctl() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##*[[:space:]]} IFS=$'\\n'
    COMPREPLY=($(_DTDCTL_COMPLETE="$line" "$1" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[=:@]}"}"}")
}
complete -o default -F _dtdctl dtdctl
""",
    "zsh": """\
_dtdctl() {
    local -a found
    found=(${(f)"$(_DTDCTL_COMPLETE="$LBUFFER" dtdctl 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _dtdctl dtdctl
""",
}
"""Text for a shell to evaluate, by the shell's name."""


def _checkpoint_names(answer: Mapping[str, Any]) -> Iterator[str]:
    for one in answer["checkpoints"]:
        yield from (one["job"], f"{one['job']}@{one['step']}")


def _model_names(answer: Mapping[str, Any]) -> Iterator[str]:
    for one in answer["models"]:
        yield one["name"]
        yield from (f"{one['name']}@{which}" for which in (one["number"], *one["aliases"]))


_NAMES: Final[Mapping[str, tuple[m.Message, Callable[[Mapping[str, Any]], Iterable[str]]]]] = {
    "job": (m.ListJobs(), lambda answer: [one["id"] for one in answer["jobs"]]),
    "worker": (m.GetStatus(), lambda answer: [one["name"] for one in answer["workers"]]),
    "checkpoint": (m.ListCheckpoints(), _checkpoint_names),
    "model": (m.ListModels(), _model_names),
    "sweep": (m.ListSweeps(), lambda answer: [one["id"] for one in answer["sweeps"]]),
}
"""The request for names of a kind, and the names in its answer."""


def completions(
    line: str, commands: Mapping[str, Command], groups: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the words that may be where the line ends; `groups` has second words of commands."""
    words = line.split()[1:]
    typed = words.pop() if words and not line[-1].isspace() else ""
    try:
        values, before = take_settings(words)
    except UsageError:  # the last word is an option that waits for its value
        return _values(OPTIONS[words[-1]], typed, words)
    pair = " ".join(before[:2])
    command = commands.get(pair) or commands.get(before[0] if before else "")
    if command is None:
        first = {name.partition(" ")[0] for name in commands}
        return _starting(groups.get(before[0], ()) if before else first, typed)
    rest = before[len(command.name.split()) :]
    flag, joined, value = typed.partition("=")
    if flag.startswith("-") and joined:
        found = _option(command, flag)
        return [f"{flag}={name}" for name in _known(found, values, value)]
    if typed.startswith("-"):
        return _starting([*flags_of(command), *OPTIONS], typed)
    return _known(_awaited(command, rest), values, typed)


def _values(option: str, typed: str, words: Sequence[str]) -> list[str]:
    """Values of an option that every command has."""
    command = next((word for word in words if word in FORMS_OF), "")
    return _starting(FORMS_OF.get(command, FORMS) if option == "form" else (), typed)


def _option(command: Command, flag: str) -> Argument | None:
    return next((one for one in command.arguments if flag in one.names), None)


def _awaited(command: Command, words: Sequence[str]) -> Argument | None:
    """The argument after these words: the value of an option, or the next positional one."""
    places = [one for one in command.arguments if not one.names[0].startswith("-")]
    at, waiting = 0, None
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            found = _option(command, word)
            waiting = found if found is not None and "action" not in found.options else None
        else:
            at += 1
    if waiting is not None:
        return waiting
    repeats = places and places[-1].options.get("nargs") == "+"
    return places[min(at, len(places) - 1)] if at < len(places) or repeats else None


def _known(one: Argument | None, values: dict[str, str], typed: str) -> list[str]:
    if one is None:
        return []
    if one.named == "kind":
        return _starting(INCIDENTS, typed)
    if one.named not in _NAMES:
        return _starting(one.options.get("choices") or (), typed)
    request, names = _NAMES[one.named]
    values.pop("form", None)
    try:
        with make_settings(values).connect(timeout_s=_PATIENCE_S) as client:
            return _starting(names(client.request(request)), typed)
    except DtdError:
        return []


def _starting(words: Iterable[str], typed: str) -> list[str]:
    return sorted({word for word in words if word.startswith(typed)})
