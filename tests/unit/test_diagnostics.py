"""The words of diagnostics: golden, whole sentences."""

from __future__ import annotations

import pytest

from dtd import diagnostics
from dtd.net import tls
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


GOLDEN = {
    str(diagnostics.no_answer("10.0.0.1:7117", 5.0)): "no answer within 5 s from the coordinator at"
    " 10.0.0.1:7117: check that its host is up, and let TCP port 7117 through its firewall",
    str(diagnostics.nobody_listens("10.0.0.1:7117")): "nothing listens at the coordinator's address"
    " 10.0.0.1:7117: start the coordinator there (systemctl start dtd-coordinator), or give its "
    "correct address with --coordinator",
    str(
        diagnostics.no_tls(
            "c:1", "its certificate is not valid yet by this host's clock", "valid from A to B; C"
        )
    ): "no TLS connection to the coordinator at c:1: its certificate is not valid yet by this"
    " host's clock (valid from A to B; C): compare `date -u` on both hosts, and synchronize both"
    " clocks (timedatectl set-ntp true)",
    str(diagnostics.name_taken("w", "a (pid 1)", "b (pid 2)")): "two workers use the name w: one on"
    " a (pid 1), one on b (pid 2): give each worker its own name with --name, or stop one of"
    " them",
    str(diagnostics.disk("w-0", "No space left on device")): "w-0 cannot write: No space left on"
    " device: free space on the disk there (df -h), or repair it; w-0 retries automatically",
    str(diagnostics.cannot_listen("0.0.0.0:7117", "is in use")): "listen address 0.0.0.0:7117 is in"
    " use: choose another with --listen",
}


@pytest.mark.parametrize("said", GOLDEN)
def test_words_that_people_search_for(said: str) -> None:
    assert said == GOLDEN[said]


def test_every_cause_that_tls_has_is_one_that_tls_can_name() -> None:
    named = {sentence for _fragment, sentence in tls._CAUSES}
    assert set(diagnostics.TLS_CAUSES_WHEN_CALLING) <= named
    assert set(diagnostics.TLS_CAUSES_WHEN_CALLED) <= named
    assert diagnostics.no_tls("c:1", "TLS failed: odd").kind == "tls"
    assert diagnostics.refused("c:1", "why", "").remedy
    assert diagnostics.turned_away("h", "odd").remedy
