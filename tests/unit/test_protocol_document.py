"""protocol.md is executable: all examples decode, its tables are the code's.

The transcript has a test of its own: test_protocol_transcript.py.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import dtd.errors
from dtd.engine import control_word
from dtd.engine.control_word import DIGEST_BYTES, ControlEntry, Flags, reduce_entries
from dtd.engine.digests import ShardDigests
from dtd.errors import DtdError, ErrorCode
from dtd.exchange.schedule.chunks import BucketShape, cut
from dtd.security.permissions import OPENS, VIEWER_MAY
from dtd.wire import fields, frames
from dtd.wire import messages as m
from dtd.wire.data_keys import ACCEPTOR, KEY_BYTES, OPENER, session_key
from dtd.wire.frames import FrameDecoder, frame_bytes
from dtd.wire.keyed_tag import KeyedTag
from dtd.wire.tags import TAG_BYTES, TAG_FLAGS
from scripts.gen_docs.protocol import with_octets

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "protocol.md").read_text()
TYPES = {m.message_name(cls): cls for cls in m.message_types().values()}
RECORDS = {cls.__name__: cls for cls in (m.Member, m.Held, m.MemoryPart, m.Branch, m.BlobInfo)}
PARTIES = {
    m.Role.WORKER: ("worker", "coordinator"),
    m.Role.CTL: ("dtdctl", "coordinator"),
    m.Role.RING: ("rank r", "rank r + 1"),
    m.Role.FETCH: ("fetcher", "holder"),
    m.Role.JOIN: ("opener", "coordinator"),
}
HANDSHAKE = ((0x01, "HELLO"), (0x02, "WELCOME"), (0x05, "PROVE"))
EXAMPLES = [
    json.loads(line)
    for line in (ROOT / "tests" / "protocol_examples.jsonl").read_text().splitlines()
]
SHOWN = [
    found.groupdict()
    for found in re.finditer(
        r"```json\n(?P<json>.*?)```\n(?:```payload\n(?P<payload>.*?)```\n)?```hex\n(?P<hex>.*?)```",
        TEXT,
        re.DOTALL,
    )
]


def search(pattern: str, text: str) -> str:
    """The first group of the first match."""
    found = re.search(pattern, text, re.DOTALL)
    assert found, pattern
    return found[1]


def section(title: str) -> str:
    """Text below a heading, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, f"protocol.md has no section {title!r}"
    return found[1]


def tables(text: str) -> list[list[list[str]]]:
    """Every table's rows of cells, without its head."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()[2:]]
        for block in blocks
    ]


# --- examples --------------------------------------------------------------------------------


def test_every_message_has_its_own_section_and_an_example() -> None:
    for number, cls in m.message_types().items():
        assert section(f"0x{number:02x} {m.message_name(cls)}")
    headings = re.findall(r"^#### 0x([0-9a-f]{2}) ", TEXT, re.MULTILINE)
    assert sorted(int(one, 16) for one in headings) == sorted(m.message_types())
    assert {example["message"] for example in EXAMPLES} == set(TYPES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["message"])
def test_example_decodes_to_its_header_and_encodes_to_its_bytes(example: dict[str, Any]) -> None:
    data, header = bytes.fromhex(example["frame"]), example["header"]
    [frame] = FrameDecoder().feed(data)
    message = m.decode_message(frame.header)
    assert m.message_name(type(message)) == example["message"]
    assert list(frame.header) == list(header)
    assert message == m.decode_message(with_octets(header))
    assert bytes(frame.payload).hex() == example["payload"]
    assert frame_bytes(m.encode_header(message), bytes(frame.payload)) == data


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: f"t{json.loads(one['json'])['t']:#x}")
def test_a_shown_example_is_one_of_the_list_with_its_parts_named(shown: dict[str, str]) -> None:
    parts: dict[str, str] = {}
    label = ""
    for line in shown["hex"].splitlines():
        label = line[:8].strip() or label
        parts[label] = parts.get(label, "") + line[8:].replace(" ", "")
    header = json.loads(shown["json"])
    [example] = [one for one in EXAMPLES if one["frame"] == "".join(parts.values())]
    assert (example["header"], example["payload"]) == (header, (shown["payload"] or "").strip())
    encoded = m.encode_header(m.decode_message(with_octets(header)))
    assert {label: len(text) // 2 for label, text in parts.items()} == {
        "prefix": frames.PREFIX_BYTES,
        "header": len(encoded),
        **({"payload": len(example["payload"]) // 2} if example["payload"] else {}),
        "tag": frames.TAG_BYTES,
    }


def _shown(default: object) -> str:
    return json.dumps(default.hex() if isinstance(default, bytes) else default)


# --- tables ----------------------------------------------------------------------------------


def documented_fields(title: str) -> list[list[str]]:
    found = tables(section(title))
    return found[0] if found else []


@pytest.mark.parametrize(
    ("title", "record"),
    [(f"0x{n:02x} {m.message_name(cls)}", cls) for n, cls in sorted(m.message_types().items())]
    + list(RECORDS.items()),
)
def test_fields_are_those_of_the_code(title: str, record: type[Any]) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    coded = [
        [f"`{name}`", kind, "required" if required else _shown(defaults[name])]
        for name, kind, _check, required in fields.layout(record)
    ]
    rows = documented_fields(title)
    assert [row[:3] for row in rows] == coded
    assert all(len(row) == 4 and row[3] for row in rows), "a field has no meaning"
    assert bool(rows) != ("No fields." in section(title))


def test_table_of_frames_is_what_connections_allow() -> None:
    [rows] = tables(section("Messages"))
    assert [(int(row[0], 16), row[1]) for row in rows] == [
        (number, m.message_name(cls)) for number, cls in sorted(m.message_types().items())
    ]
    for _number, name, role, sender, state, payload in rows:
        cls = TYPES[name]
        assert payload == payload_limit(cls)
        if role == "all":
            assert (sender, state) == {
                m.Hello: ("opener", "await hello"),
                m.Welcome: ("acceptor", "await welcome"),
                m.Error: ("either", "any but closed"),
                m.Goodbye: ("either", "open"),
            }[cls]
            continue
        if cls is m.Prove:
            assert (role, sender, state) == ("ring, lifeline, fetch, star", "opener", "await prove")
            continue
        assert state == "open"
        if cls in (m.Renew, m.Renewed):
            assert (role, sender) == ("worker, ctl", "opener" if cls is m.Renew else "coordinator")
            continue
        if cls in (m.Chunk, m.CodedChunk, m.LinkHeartbeat):
            said_by = "either" if cls is m.LinkHeartbeat else "rank r; on a star either"
            assert (role, sender) == ("ring, star", said_by)
            continue
        by_opener = [r for r in m.Role if cls in m.from_opener(r)]
        by_acceptor = [r for r in m.Role if cls in m.from_acceptor(r)]
        [only] = set(by_opener + by_acceptor)
        both = bool(by_opener) and bool(by_acceptor)
        who = "either" if both else PARTIES[only][0 if by_opener else 1]
        assert (role, sender) == (only.value, who)


def payload_limit(cls: type[Any]) -> str:
    limit = m.kind_of(cls).max_payload_bytes
    return f"<= {limit}" if limit else "none"


def test_errors_are_those_of_the_code() -> None:
    [rows] = tables(section("Errors"))
    assert {int(code): name for code, name, *_ in rows} == {c.value: c.name for c in ErrorCode}
    for _code, name, when, does, exception in rows:
        assert when
        assert does
        assert issubclass(getattr(dtd.errors, exception), DtdError)
        assert (exception == "RequestRefused") == (name == "REFUSED")


def test_limits_are_those_of_the_code() -> None:
    [rows] = tables(section("Limits and time-outs"))
    assert len(rows) > 10
    for limit, value, where, _beyond in rows:
        module, _, name = where.rpartition(".")
        assert getattr(importlib.import_module(module), name) == float(value.split()[0]), limit


def test_prefix_box_is_the_struct() -> None:
    _box, rows = tables(section("Frames"))
    sizes = [int(row[1]) for row in rows[:6]]
    assert [int(row[0]) for row in rows[:7]] == [sum(sizes[:i]) for i in range(7)]
    assert sum(sizes) == frames.PREFIX_BYTES
    assert frames.PREFIX.format == "!4sBBHII"
    assert bytes.fromhex(search(r"`(44 .*?)`", rows[0][3])) == frames.MAGIC
    assert int(rows[1][3]) == frames.PROTOCOL_VERSION
    assert [int(one, 16) for one in rows[2][3].split("`")[1::2]] == list(TAG_FLAGS)


def test_the_handshake_of_the_document_is_the_code_s() -> None:
    """The keys and tags for the HELLO and WELCOME that are shown in their own sections."""
    shown = search(r"```handshake\n(.*?)```", section("Data connections: handshake and keys"))
    lines: dict[str, str] = {}
    label = ""
    for line in shown.splitlines():
        label = line[:15].strip() or label
        lines[label] = lines.get(label, "") + line[15:]
    said = {name: shown_message(f"0x{number:02x} {name}") for number, name in HANDSHAKE}
    hello, welcome, prove = said.values()
    headers = {name: m.encode_header(message) for name, message in said.items()}
    secret = b"s" * KEY_BYTES
    keys = {
        sender: session_key(
            secret,
            hello=headers["HELLO"],
            hello_nonce=hello.nonce,
            welcome_nonce=welcome.nonce,
            sender=sender,
        )
        for sender in (OPENER, ACCEPTOR)
    }
    tags = {sender: KeyedTag(key, later=welcome.tag) for sender, key in keys.items()}
    assert lines == {
        "HELLO header": headers["HELLO"].hex(),
        "WELCOME header": headers["WELCOME"].hex(),
        "opener key": keys[OPENER].hex(),
        "acceptor key": keys[ACCEPTOR].hex(),
        "WELCOME tag": m.message_bytes(welcome, tag=tags[ACCEPTOR])[-TAG_BYTES:].hex(),
        "PROVE tag": m.message_bytes(prove, tag=tags[OPENER])[-TAG_BYTES:].hex(),
    }


def shown_message(title: str) -> Any:
    """The message of a section's example."""
    values = json.loads(search(r"```json\n(.*?)```", section(title)))
    return m.decode_message(with_octets(values))


def test_kinds_are_explained() -> None:
    [rows] = tables(section("Notation"))
    explained = {kind for row in rows for kind in row[0].split(", ")}
    used = {
        re.sub(r"<=\d+( of \w+)?", lambda found: "<=n of R" if found[1] else "<=n", kind)
        for record in [*TYPES.values(), *RECORDS.values()]
        for _name, kind, _check, _required in fields.layout(record)
    }
    assert used <= explained
    assert explained - used <= {"u8", "u16"}


NOTHING = ControlEntry()


def test_control_word_layout_is_the_struct() -> None:
    boxes, flags = tables(section("Control word"))
    sizes = [int(row[1]) for row in boxes]
    offsets = [int(row[0]) for row in boxes]
    assert offsets == [sum(sizes[:i]) for i in range(len(sizes))]
    assert sum(sizes) == len(control_word.encode_entry(ControlEntry()))
    for bits, name, combined, _means in flags:
        attribute = {"yield": "yield_"}.get(name, name.replace(" ", "_"))
        entry = ControlEntry(flags=Flags(**{attribute: True}))
        data = control_word.encode_entry(entry)
        assert data[1] == int(bits, 16)
        word = reduce_entries([data, control_word.encode_entry(NOTHING)])
        assert getattr(word.flags, attribute) == (combined == "or")


def test_layout_of_the_digests_of_shards_is_what_is_encoded() -> None:
    (boxes,) = tables(section("Digests of shards"))
    common, parts = b"c" * DIGEST_BYTES, {1: b"x" * DIGEST_BYTES, 2: b"y" * DIGEST_BYTES}
    values = {
        "cut": (4).to_bytes(2, "little"),
        "count": (2).to_bytes(2, "little"),
        "common": common,
        "index": (1).to_bytes(2, "little"),
        "hash": parts[1],
    }
    data = ShardDigests(cut=4, common=common, segments=parts).encode()
    end = 0
    for offset, size, name, _meaning in boxes:
        assert int(offset) == end, name
        end += int(size)
        assert data[int(offset) : end] == values.pop(name), name
    assert not values
    assert data[end:] == (2).to_bytes(2, "little") + parts[2]


# --- security --------------------------------------------------------------------------------


def test_the_table_of_roles_says_what_each_may() -> None:
    (roles,) = tables(section("Security of control connections"))
    named = {"none": "stranger"}
    for role, connections, may in roles:
        opens = {str(one) for one in OPENS[named.get(role, role)]}
        assert set(connections.split(", ")) == opens, role
        if role == "viewer":
            asked = set(re.findall(r"\b[A-Z][A-Z_]+\b", may))
            assert asked == {m.message_name(cls) for cls in VIEWER_MAY}
    assert {role for role, *_ in roles} == {"worker", "operator", "viewer", "none"}


# --- ring ------------------------------------------------------------------------------------


def test_segments_and_chunks_of_the_example() -> None:
    [rows] = tables(section("Segments and chunks"))
    segments = cut(BucketShape(elements=5, item_bytes=4), world_size=2, chunk_bytes=8)
    for index, elements, chunks in rows:
        segment = int(index)
        assert "{}..{}".format(*segments.segment(segment)) == elements
        assert [
            "{}..{}".format(*segments.chunk(segment, chunk))
            for chunk in range(segments.chunk_count(segment))
        ] == chunks.split(", ")


def test_schedule_of_the_example_follows_the_formulas() -> None:
    _formulas, rows = tables(section("All-reduce"))
    for rank, scatter, gather in rows:
        r, n = int(rank), 4
        assert scatter == ", ".join(str((r - h) % n) for h in range(n - 1))
        assert gather == ", ".join(str((r + 1 - h) % n) for h in range(n - 1))


# --- prose -----------------------------------------------------------------------------------


def test_links_within_the_document_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    targets = re.findall(r"\]\(#([^)]+)\)", TEXT)
    assert targets
    assert set(targets) <= anchors
