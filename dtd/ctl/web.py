"""`dtdctl web`: the web page's URL, and a code with which the caller logs in there once."""

from __future__ import annotations

from dtd import figures
from dtd.ctl import output
from dtd.ctl.settings import Settings
from dtd.wire import messages as m


def open_web(settings: Settings) -> int:
    """Print the page's address with a code in it, which is sent to nobody but the page."""
    with settings.connect() as client:
        answer = client.request(m.OpenWeb())
    link = f"{answer['url']}#login={answer['code']}"
    if settings.as_json:
        output.print_json({**answer, "link": link})
        return 0
    output.print_lines([link])
    output.say(
        f"good once, until {figures.moment(answer['expires_unix_s'])}; whoever opens it acts there"
        " as you"
    )
    if answer["certificate_sha256"]:
        output.say(
            "the browser does not know this certificate; compare its SHA-256 fingerprint:"
            f" {answer['certificate_sha256']}"
        )
    return 0
