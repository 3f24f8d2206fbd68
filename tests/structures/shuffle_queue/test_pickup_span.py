"""How long a message waited stands on the span in which it was read."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.servers import AnyServer, RedisServer
from workstealing.structures import AsyncShuffleQueue, ShuffleQueue

NAME = "queue.pickup_delay_ms"


def test_the_current_span_says_it(any_server: AnyServer) -> None:
    finished = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(finished))
    tracer = provider.get_tracer("tests")
    queue = ShuffleQueue(any_server.client(), "spans")
    queue.write("t", {"a": 1})
    with tracer.start_as_current_span("work"):
        message = queue.read("g", "c")
    with tracer.start_as_current_span("idle"):
        assert queue.read("g", "c") is None
    assert message is not None
    work, idle = finished.get_finished_spans()
    assert work.attributes is not None
    assert idle.attributes is not None
    assert dict(work.attributes) == {NAME: message.pickup_delay_ms}
    assert dict(idle.attributes) == {}


@pytest.mark.real
async def test_on_asyncio_too(redis7: RedisServer) -> None:
    finished = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(finished))
    client = redis7.async_client()
    queue = AsyncShuffleQueue(client, "spans")
    await queue.write("t", {"a": 1})
    with provider.get_tracer("tests").start_as_current_span("work"):
        message = await queue.read("g", "c")
    assert message is not None
    (span,) = finished.get_finished_spans()
    assert span.attributes is not None
    assert dict(span.attributes) == {NAME: message.pickup_delay_ms}
    await queue.aclose()
    await client.aclose()
