from __future__ import annotations

import pytest

from dtd.address import Address, SocketPath
from dtd.ctl.settings import make_settings, take_settings
from dtd.errors import UsageError


@pytest.mark.parametrize(
    ("line", "values", "rest"),
    [
        ("status", {}, ["status"]),
        ("-o json status", {"form": "json"}, ["status"]),
        ("status -o json", {"form": "json"}, ["status"]),
        ("status -ojson", {"form": "json"}, ["status"]),
        ("status -o=json", {"form": "json"}, ["status"]),
        ("status --format=json", {"form": "json"}, ["status"]),
        ("status --format table --format json", {"form": "json"}, ["status"]),
        ("report j -o md --output f", {"form": "md"}, ["report", "j", "--output", "f"]),
        (
            "--coordinator h:1 wait j --timeout 3",
            {"coordinator": "h:1"},
            ["wait", "j", "--timeout", "3"],
        ),
        ("wait --coordinator=h:1 -- -o", {"coordinator": "h:1"}, ["wait", "--", "-o"]),
    ],
)
def test_common_options_may_stand_anywhere(line, values, rest):
    assert take_settings(line.split()) == (values, rest)


def test_precedence_flag_environment_default(monkeypatch):
    monkeypatch.delenv("DTD_COORDINATOR", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
    assert str(make_settings({}).targets()[0].address).endswith("dtd/coordinator/control.sock")
    assert make_settings({"coordinator": "unix:/s"}).targets()[0].address == SocketPath("/s")
    monkeypatch.setenv("DTD_COORDINATOR", "there:5,[::1]:6")
    assert make_settings({}).addresses == (Address("there", 5), Address("::1", 6))
    assert make_settings({"coordinator": "[::1]:9"}).addresses == (Address("::1", 9),)
    with pytest.raises(UsageError, match=r"no credential for \[::1\]:9"):
        make_settings({"coordinator": "[::1]:9"}).targets()
    assert not make_settings({}).as_json
    assert make_settings({"form": "json"}).as_json


def test_wrong_values_name_where_they_came_from(monkeypatch):
    with pytest.raises(UsageError, match="-o: 'xml' is not an output format"):
        make_settings({"form": "xml"})
    with pytest.raises(UsageError, match=r"^--coordinator must be HOST:PORT"):
        make_settings({"coordinator": "nonsense"})
    monkeypatch.setenv("DTD_COORDINATOR", "h:99999")
    with pytest.raises(UsageError, match=r"^DTD_COORDINATOR must end in a port"):
        make_settings({})
