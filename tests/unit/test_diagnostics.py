"""Diagnostics: each names where it is and what to do."""

from __future__ import annotations

import pytest

from dtd import diagnostics
from dtd.net.clients import tls
from scripts.gen_docs.catalogues import samples

SAMPLES = samples()


@pytest.mark.parametrize("one", SAMPLES, ids=lambda one: one.kind)
def test_each_names_where_it_is_and_what_to_do(one: diagnostics.Diagnostic) -> None:
    assert one.kind.replace("-", "").isalpha()
    assert any(word in one.message for word in one.where.split(" - "))
    assert one.remedy
    assert not (one.message + one.remedy).endswith(".")
    assert "|" not in str(one)
    assert "{" not in str(one)


def test_every_cause_that_tls_has_is_one_that_tls_can_name() -> None:
    named = {sentence for _fragment, sentence in tls._CAUSES}
    assert set(diagnostics.TLS_CAUSES_WHEN_CALLING) <= named
    assert set(diagnostics.TLS_CAUSES_WHEN_CALLED) <= named
    assert diagnostics.no_tls("c:1", "TLS failed: odd").kind == "tls"
    assert diagnostics.refused("c:1", "why", "").remedy
    assert diagnostics.turned_away("h", "odd").remedy
