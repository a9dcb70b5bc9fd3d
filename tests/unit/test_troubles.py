"""The words of troubles: golden, whole sentences."""

from __future__ import annotations

import pytest

from dtd import troubles
from dtd.security import tls_faults
from scripts.gen_docs.catalogues import samples

SAMPLES = samples()


@pytest.mark.parametrize("one", SAMPLES, ids=lambda one: one.kind)
def test_each_names_where_it_is_and_what_to_do(one: troubles.Trouble) -> None:
    assert one.kind.replace("-", "").isalpha()
    assert any(word in one.message for word in one.where.split(" - "))
    assert one.remedy
    assert not (one.message + one.remedy).endswith(".")
    assert "|" not in str(one)
    assert "{" not in str(one)


GOLDEN = {
    str(troubles.no_answer("10.0.0.1:7117", 5.0)): "no answer within 5 s from the coordinator at"
    " 10.0.0.1:7117: check that its host is up, and let TCP port 7117 through its firewall",
    str(troubles.nobody_listens("10.0.0.1:7117")): "nobody listens at the coordinator's address"
    " 10.0.0.1:7117: start the coordinator there (systemctl start dtd-coordinator), or name its"
    " right address with --coordinator",
    str(troubles.no_tls("c:1", "its certificate is not valid yet: compare both clocks")): "no TLS"
    " connection to the coordinator at c:1: its certificate is not valid yet: compare both clocks:"
    " compare `date -u` on both hosts, and have them keep time (timedatectl set-ntp true)",
    str(troubles.name_taken("w", "a (pid 1)", "b (pid 2)")): "two workers call themselves w: one on"
    " a (pid 1), one on b (pid 2): give each worker a name of its own with --name, or stop one of"
    " them",
    str(troubles.disk("w-0", "No space left on device")): "w-0 cannot write: No space left on"
    " device: make room on the disk there (df -h), or repair it; w-0 tries again by itself",
    str(troubles.cannot_listen("0.0.0.0:7117", "is in use")): "listen address 0.0.0.0:7117 is in"
    " use: choose another with --listen",
}


@pytest.mark.parametrize("said", GOLDEN)
def test_words_that_people_search_for(said: str) -> None:
    assert said == GOLDEN[said]


def test_every_cause_that_tls_has_is_one_that_tls_can_name() -> None:
    named = {sentence for _fragment, sentence in tls_faults._CAUSES}
    assert set(troubles.TLS_CAUSES_WHEN_CALLING) <= named
    assert set(troubles.TLS_CAUSES_WHEN_CALLED) <= named
    assert troubles.no_tls("c:1", "TLS failed: odd").kind == "tls"
    assert troubles.refused("c:1", "why", "").remedy
    assert troubles.turned_away("h", "odd").remedy
