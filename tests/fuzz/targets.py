"""Everything that reads bytes from strangers, as functions that a fuzzer can call.

A target takes any bytes and returns; only the errors its protocol documents are caught here, so
whatever else comes out is a finding. Seeds are inputs that reach the inner parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from pydantic_core import PydanticCustomError

from angarium.conversations.model import read_task
from angarium.dispatch.errors import FrameInvalid
from angarium.dispatch.frames import Command, FrameReader, encode, encode_messages
from angarium.dispatch.protocol import (
    DispatcherProtocol,
    Hello,
    ProtocolViolated,
    WorkerProtocol,
    encode_hello,
)
from angarium.lake.errors import OptionInvalid
from angarium.lake.sources import entry_ids
from angarium.pickup import jsonrpc, methods
from angarium.pickup.limits import PickupLimits
from angarium.pickup.payload import check_payload
from angarium.redis.url import parse_redis_url
from angarium.routing import items
from angarium.routing.dead_letters import read_dead_letter
from angarium.routing.envelope import read_envelope
from angarium.routing.errors import ItemInvalid
from angarium.routing.http1 import HttpRequestReader, HttpRequestRefused
from angarium.runtime.errors import InputInvalid, LimitExceeded, SettingInvalid
from angarium.runtime.http_api import decode
from angarium.runtime.journal import EntryUnreadable, decode_entry
from angarium.runtime.page_cursor import cursor_numbers
from angarium.runtime.setting_group import key_name, read_consumers, read_list
from angarium.runtime.tokens import from_settings
from angarium.runtime.trace import read_traceparent, trace_in_payload
from angarium.runtime.urls import (
    database_url_problem,
    host_port_problem,
    http_url_problem,
    lake_url_problem,
    redacted,
    redis_url_problem,
)
from angarium.transactions.compat import DatpStartRequest
from angarium.transactions.http_bodies import SwitchBody, TransactionBatchBody, TransactionStartBody
from angarium.transactions.pipeline import PipelineDefinition, read_pipelines
from tests.fuzz.redis_replies import RIGHT, redis_replies

LIMITS = PickupLimits()
REFUSED = (InputInvalid, LimitExceeded)
SMALL = 4_096


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def _cut(data: bytes) -> list[bytes]:
    """The same bytes in two reads; the first one says where the cut is."""
    place = data[0] if data else 0
    return [data[:place], data[place:]]


def frames(data: bytes) -> None:
    reader = FrameReader(SMALL)
    with contextlib.suppress(FrameInvalid):
        for piece in _cut(data):
            reader.feed(piece)


def dispatch_protocol(data: bytes) -> None:
    sides = (
        DispatcherProtocol(SMALL, "secret", dials=True),
        DispatcherProtocol(SMALL, None, dials=False),
        WorkerProtocol(SMALL, "secret", dials=False),
        WorkerProtocol(SMALL, None, dials=False),
    )
    for side in sides:
        for piece in _cut(data):
            if any(isinstance(event, ProtocolViolated) for event in side.receive(piece)):
                break


def http_requests(data: bytes) -> None:
    reader = HttpRequestReader(SMALL)
    with contextlib.suppress(HttpRequestRefused):
        for piece in _cut(data):
            reader.feed(piece)
            while (request := reader.next_request()) is not None:
                assert len(request.body) <= SMALL


def envelopes(data: bytes) -> None:
    with contextlib.suppress(*REFUSED):
        assert read_envelope(data, SMALL).recip_key


def routing_items(data: bytes) -> None:
    with contextlib.suppress(ItemInvalid):
        items.decode_inbound(data, "key")
    with contextlib.suppress(ItemInvalid):
        items.decode_response(data)
    with contextlib.suppress(ItemInvalid):
        outbound, _ = items.decode_outbound(data)
        items.outbound_id(outbound)
        items.decode_outbound(items.encode_outbound(items.with_failure(outbound)))
    msgspec.json.encode(read_dead_letter(data))


def json_rpc(data: bytes) -> None:
    for entry in jsonrpc.parse(data, 10).entries:
        if isinstance(entry, jsonrpc.Refusal):
            msgspec.json.decode(entry.answer)


def pickup_parameters(data: bytes) -> None:
    for read in (methods.read_take, methods.read_add, methods.read_remove):
        with contextlib.suppress(*REFUSED):
            read(data, LIMITS)
    with contextlib.suppress(*REFUSED):
        methods.read_session(data, LIMITS, needs_id=True)
    with contextlib.suppress(*REFUSED):
        methods.read_events(data)
    with contextlib.suppress(*REFUSED):
        check_payload(data, LIMITS.pickup_payload_levels_max)
        msgspec.json.decode(data)


def pipelines(data: bytes) -> None:
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        for toml in (False, True):
            with contextlib.suppress(*REFUSED):
                read_pipelines(text, toml=toml)


def journal_entries(data: bytes) -> None:
    fields = data.split(b"\x00")
    with contextlib.suppress(EntryUnreadable):
        decode_entry(b"1-0", fields)


def conversation_tasks(data: bytes) -> None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        read_task(data)


def urls(data: bytes) -> None:
    text = data.decode(errors="replace")
    redacted(text)
    host_port_problem(text)
    for problem in (redis_url_problem, database_url_problem, http_url_problem, lake_url_problem):
        told = problem(text)
        # A malformed address may hold a password, so what is told never repeats its rest.
        assert told is None or len(told) < 120


def http_bodies(data: bytes) -> None:
    for kind in (
        TransactionStartBody,
        TransactionBatchBody,
        SwitchBody,
        PipelineDefinition,
        DatpStartRequest,
    ):
        with contextlib.suppress(InputInvalid):
            read = decode(data, kind)
            if isinstance(read, TransactionStartBody):
                read.start()


def traces(data: bytes) -> None:
    for trace in (trace_in_payload(data), read_traceparent(data.decode(errors="replace"))):
        assert trace is None or read_traceparent(trace.header) == trace


def marks(data: bytes) -> None:
    text = data.decode(errors="replace")
    with contextlib.suppress(InputInvalid):
        cursor_numbers(text, 2)
    with contextlib.suppress(OptionInvalid):
        assert entry_ids.number_of(text) >= 0


def setting_texts(data: bytes) -> None:
    text = data.decode(errors="replace")
    for read in (read_list, read_consumers, key_name):
        with contextlib.suppress(PydanticCustomError):
            read(text)
    with contextlib.suppress(SettingInvalid):
        from_settings([text])
    if redis_url_problem(text) is None:
        with contextlib.suppress(SettingInvalid):
            parse_redis_url(text)


ENVELOPE = b'{"protected":"eyJyZWNpcGllbnRzIjpbeyJoZWFkZXIiOnsia2lkIjoiayJ9fV19","ciphertext":"x"}'
TARGETS: Mapping[str, Target] = {
    "frames": Target(
        frames,
        (encode_messages([(b"i" * 36, b'{"a":1}')]), encode(Command.HEARTBEAT), b"\x03\x00\x00"),
    ),
    "dispatch_protocol": Target(
        dispatch_protocol,
        (
            encode_hello(Hello(window=1)),
            encode(Command.HELLO, b'{"nonce":"%s"}' % (b"0" * 64)),
            encode(Command.PROOF, bytes(32)),
            encode_messages([(b"i" * 36, b"1")]),
        ),
    ),
    "http_requests": Target(
        http_requests,
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;a=b\r\nhi\r\n0\r\n\r\n",
            b"GET /x?y HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n",
        ),
    ),
    "envelopes": Target(
        envelopes, (ENVELOPE, b'{"recipients":[{"header":{"kid":"k"}}],"protected":"e30"}')
    ),
    "routing_items": Target(
        routing_items,
        (
            items.encode_inbound(b"payload", "ws", "t.1").encode(),
            b'{"service":{"url":"http://a/"},"payload":"aGk=","retries":2}',
            b'{"txn_id":"a","response_data":{"content_type":"b","payload":"aGk="}}',
            b'{"id":"a","recip_key":"b","reason":"c","message":"{}","at_ms":1}',
        ),
    ),
    "json_rpc": Target(
        json_rpc,
        (
            b'{"jsonrpc":"2.0","method":"addMessage","params":{"connectionId":"c"},"id":1}',
            b'[{"jsonrpc":"2.0","method":"a","id":"x"},1,{"jsonrpc":"2.0","method":"b"}]',
        ),
    ),
    "pickup_parameters": Target(
        pickup_parameters,
        (
            b'{"connectionId":"c","recipientDids":["did:a"],"payload":{"x":1},"id":"i"}',
            b'{"connectionId":"c","recipientDid":"did:a","limit":3,"deleteMessages":true}',
            b'{"connectionId":"c","messageIds":["a","b"]}',
            b'["messageReceive"]',
        ),
    ),
    "pipelines": Target(
        pipelines,
        (
            b'{"name":"p","steps":[{"type":"noop","name":"a"}]}',
            b'name = "p"\n[[steps]]\ntype = "noop"\n',
        ),
    ),
    "journal_entries": Target(
        journal_entries,
        (
            b"v\x001\x00room\x00x\x00at\x001\x00by\x00me\x00n\x001\x00seq\x001\x00end\x001"
            b'\x00rows\x00{"e":"a","s":"b"}',
        ),
    ),
    "conversation_tasks": Target(conversation_tasks, (b'{"taskId":"a"}',)),
    "http_bodies": Target(
        http_bodies,
        (
            b'{"pipeline":"p","data":{"a":1},"owner":"o","external_id":"e","version":1}',
            b'{"transactions":[{"pipeline":"p"}]}',
            b'{"metadata":{"owner":"o","reply":"longpoll"},"data":1}',
        ),
    ),
    "traces": Target(
        traces,
        (
            b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
            b'{"traceparent":"00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"}',
        ),
    ),
    "marks": Target(marks, (b"12:18446744073709551615", b"1700000000000-5", b"0-0")),
    "setting_texts": Target(
        setting_texts,
        (
            b'["a:1","b:2"]',
            b"10.0.0.1:9000,10.0.0.2:9000",
            b"write@acme:sha256=" + b"0" * 64,
            b"rediss+sentinel://u:p@a:1,b:2/primary/0?ca=x&verify=false",
        ),
    ),
    "redis_replies": Target(
        redis_replies,
        (
            b"\x00" + RIGHT,
            b"\x25" + RIGHT,
            b"\x00" + RIGHT.replace(b"+f:0000000000000002", b"-BUSY x"),
            b"\x00" + RIGHT.replace(b":1\r\n$-1", b"%1\r\n*0\r\n+a"),
        ),
    ),
    "urls": Target(
        urls,
        (
            b"redis+sentinel://user:pass@a:1,b:2/primary/0?x=1",
            b"postgresql://u:p@[::1]:5432/db",
            b"sqlite:////tmp/x",
        ),
    ),
}
