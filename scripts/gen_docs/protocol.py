"""protocol.md and the examples of all messages, in step with dtd/wire.

What the code knows is rewritten (kinds, defaults, the table of frames, the bytes of every example);
what only people know is kept (meanings, values in examples, prose).  A new field gets an empty
meaning, and a test fails until it is written.  Sections are added by hand.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any, Final

from dtd.wire import fields as kinds
from dtd.wire import frames
from dtd.wire import messages as m

BYTES_PER_LINE: Final = 32
SIDES: Final = {
    m.Role.WORKER: ("worker", "coordinator"),
    m.Role.CTL: ("dtdctl", "coordinator"),
    m.Role.RING: ("rank r", "rank r + 1"),
    m.Role.FETCH: ("fetcher", "holder"),
    m.Role.JOIN: ("opener", "coordinator"),
}
HANDSHAKE: Final = {
    m.Hello: "| all | opener | await hello |",
    m.Welcome: "| all | acceptor | await welcome |",
    m.Error: "| all | either | any but closed |",
    m.Goodbye: "| all | either | open |",
    m.Prove: "| ring, lifeline, fetch, star | opener | await prove |",
    m.Chunk: "| ring, star | rank r; on a star either | open |",
    m.CodedChunk: "| ring, star | rank r; on a star either | open |",
    m.LinkHeartbeat: "| ring, star | either | open |",
    m.Renew: "| worker, ctl | opener | open |",
    m.Renewed: "| worker, ctl | coordinator | open |",
}
TYPES: Final = {m.message_name(cls): cls for cls in m.message_types().values()}
_FIELD: Final = re.compile(r"^\| `(\w+)` \| .*? \| .*? \| (.*) \|$", re.MULTILINE)
_EXAMPLE: Final = re.compile(
    r"```json\n(?P<json>.*?)```\n(?:```payload\n(?P<payload>.*?)```\n)?```hex\n.*?```\n", re.DOTALL
)


def renewed(text: str) -> str:
    """The document, with its generated parts renewed."""
    text = _replace_table(text, "| number | name |", _frames_table())
    for record in (*TYPES.values(), m.Member, m.Held, m.Branch, m.BlobInfo, m.ShmRegion):
        text = _replace_fields(text, record)
    return _EXAMPLE.sub(_example, text)


def examples(text: str) -> str:
    """The lines of tests/protocol_examples.jsonl, with their frames renewed."""
    return "".join(json.dumps(_line(json.loads(line))) + "\n" for line in text.splitlines())


def _line(example: dict[str, Any]) -> dict[str, Any]:
    message = m.decode_message(with_octets(example["header"]))
    payload = bytes.fromhex(example["payload"])
    frame = frames.frame_bytes(m.encode_header(message), payload)
    return {**example, "message": m.message_name(type(message)), "frame": frame.hex()}


def _frames_table() -> list[str]:
    rows = [
        "| number | name | role | sent by | receiver's state | payload |",
        "|---|---|---|---|---|---|",
    ]
    for number, cls in sorted(m.message_types().items()):
        where = HANDSHAKE.get(cls) or _sender(cls)
        limit = m.kind_of(cls).max_payload_bytes
        payload = f"<= {limit}" if limit else "none"
        rows.append(f"| 0x{number:02x} | {m.message_name(cls)} {where} {payload} |")
    return rows


def _sender(cls: type[Any]) -> str:
    for role, (opener, acceptor) in SIDES.items():
        by_opener = cls in m.from_opener(role)
        by_acceptor = cls in m.from_acceptor(role)
        if by_opener or by_acceptor:
            both = by_opener and by_acceptor
            who = "either" if both else opener if by_opener else acceptor
            return f"| {role.value} | {who} | open |"
    raise SystemExit(f"{cls.__name__} has no sender")


def _replace_fields(text: str, record: type[Any]) -> str:
    name = m.message_name(record) if record in TYPES.values() else record.__name__
    layout = kinds.layout(record)
    if not layout:
        return text
    head = re.search(rf"^#### (0x[0-9a-f]{{2}} )?{name}$", text, re.MULTILINE)
    if head is None:
        raise SystemExit(f"protocol.md has no section for {name}")
    start = head.start()
    end = text.index("\n#", head.end()) + 1
    before, section, after = text[:start], text[start:end], text[end:]
    meanings = dict(_FIELD.findall(section))
    defaults = {field.name: field.default for field in fields(record)}
    rows = ["| field | kind | default | meaning |", "|---|---|---|---|"]
    for field_name, kind, _check, required in layout:
        default = "required" if required else _shown(defaults[field_name])
        rows.append(f"| `{field_name}` | {kind} | {default} | {meanings.get(field_name, '')} |")
    return before + _replace_table(section, rows[0], rows) + after


def _replace_table(text: str, first: str, rows: list[str]) -> str:
    """Replace the first table whose head begins with `first`."""
    start = text.index(first)
    end = min(found for found in (text.find("\n\n", start), len(text)) if found >= 0)
    return text[:start] + "\n".join(rows) + text[end:]


def _example(found: re.Match[str]) -> str:
    values: dict[str, Any] = json.loads(found["json"])
    payload = bytes.fromhex(found["payload"] or "")
    message = m.decode_message(with_octets(values))
    head, tag = frames.encode_frame(m.encode_header(message), payload)
    prefix = head[: frames.PREFIX_BYTES].hex()
    cuts = [prefix[a:b] for a, b in ((0, 8), (8, 10), (10, 12), (12, 16), (16, 24), (24, 32))]
    lines = [f"prefix  {' '.join(cuts)}"]
    lines += _dump("header", head[frames.PREFIX_BYTES :])
    lines += _dump("payload", payload)
    lines += _dump("tag", tag)
    shown = "" if found["payload"] is None else f"```payload\n{found['payload']}```\n"
    return f"```json\n{found['json']}```\n{shown}```hex\n" + "\n".join(lines) + "\n```\n"


def with_octets(values: dict[str, Any]) -> dict[str, Any]:
    """A message as the document shows it, where octets are text in hexadecimal."""
    record = m.message_types()[values["t"]]
    octets = {name for name, kind, *_ in kinds.layout(record) if kind.startswith("octets")}
    return {
        name: bytes.fromhex(value) if name in octets else value for name, value in values.items()
    }


def _shown(default: object) -> str:
    return json.dumps(default.hex() if isinstance(default, bytes) else default)


def _dump(label: str, data: bytes) -> list[str]:
    starts = range(0, len(data), BYTES_PER_LINE)
    return [
        f"{label if start == 0 else '':8}{data[start : start + BYTES_PER_LINE].hex()}"
        for start in starts
    ]
