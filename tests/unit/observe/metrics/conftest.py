"""Reading an endpoint as Prometheus does."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dtd.address import Address

PATIENCE_S = 30.0
Scraped = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _scrape(address: Address) -> Scraped:
    url = f"http://{address}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def scrape() -> Callable[[Address], Scraped]:
    """All samples of an endpoint by name and labels."""
    return _scrape
