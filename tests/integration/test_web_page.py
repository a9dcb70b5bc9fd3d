"""The web page in a real browser: every page, a live run, a worker that dies meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd.address import Address
from dtd.wire import messages as m
from tests.integration.beyond import Beyond
from tests.integration.conftest import GATED_JOB, Daemons, Gates

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="needs Debian's chromium and chromium-driver",
    ),
]

PATIENCE_S = 60.0
WORKERS = 3
PICTURES = "DTD_SCREENSHOTS"
"""Directory in which pictures of all pages are kept; default: a temporary one."""

SAVED = "Report saved."
SWEEP = {
    "sweep": {"metric": "accuracy", "direction": "maximize", "method": "random", "trials": 3},
    "space": {"optimizer.lr": {"low": 0.001, "high": 0.5, "log": True}},
}

OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-proxy-server", "--hide-scrollbars", "--window-size=1440,1000"),
)


class Browser:
    """Chromium, and what can be seen in it."""

    def __init__(self, pictures: Path, *more: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for option in (*OPTIONS, *more):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(str(shutil.which("chromedriver")))
        self.driver = webdriver.Chrome(options=options, service=service)
        self._pictures = pictures

    def open(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {script}", *arguments)

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until an expression is true, without leaving the browser in between."""
        self.driver.set_script_timeout(PATIENCE_S)
        look = (
            "const done = arguments[arguments.length - 1], given = [...arguments].slice(0, -1);"
            f"const look = () => {{ const found = ((...a) => ({script}))(...given);"
            " if (found) { watch.disconnect(); done(found); } };"
            "const watch = new MutationObserver(look);"
            "watch.observe(document, {subtree: true, childList: true,"
            " attributes: true, characterData: true}); look();"
        )
        return self.driver.execute_async_script(look, *arguments)

    def until_text(self, text: str) -> None:
        self.until("document.body.innerText.includes(a[0])", text)

    def click(self, script: str) -> None:
        self.run(f"{script}.click()")

    def choose(self, select: str, value: str) -> None:
        """Choose an option of a list, as a person does."""
        self.run(
            "((id, value) => { const list = document.getElementById(id); list.value = value;"
            " list.dispatchEvent(new Event('change')); })(...arguments)",
            select,
            value,
        )

    def picture(self, name: str, *, width: int = 1440, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        send = self.driver.execute_cdp_cmd
        send("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
        send("Emulation.setDeviceMetricsOverride", size)
        height = min(4000, int(self.run("document.documentElement.scrollHeight")))
        send("Emulation.setDeviceMetricsOverride", {**size, "height": height})
        self.until(
            "[...document.querySelectorAll('.js-plotly-plot')].every((place) =>"
            " place.querySelector('.main-svg')?.clientWidth === place.clientWidth)"
        )
        self.driver.save_screenshot(str(self._pictures / f"{name}.png"))
        assert self.run("document.documentElement.scrollWidth") <= width, name
        send("Emulation.clearDeviceMetricsOverride", {})

    def complaints(self) -> list[str]:
        """The browser's complaints, without those about the library's style."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]
        return [one for one in found if "charts.js" not in one and "401" not in one]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Path(os.environ.get(PICTURES) or tmp_path_factory.mktemp("pictures"))
    made.mkdir(parents=True, exist_ok=True)
    return made


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[..., Daemons]) -> Daemons:
    return start_daemons(WORKERS, web=Address("127.0.0.1", 0))


@pytest.fixture(scope="module")
def gates(daemons: Daemons) -> Gates:
    return daemons.hold(20)


@pytest.fixture(scope="module")
def job(daemons: Daemons, gates: Gates) -> str:
    text = GATED_JOB.replace("gated_task:Gated", "loud_task:Loud")
    return daemons.submit(gates=gates, text=text)


@pytest.fixture(scope="module")
def browser(daemons: Daemons, pictures: Path) -> Iterator[Browser]:
    made = Browser(pictures)
    yield made
    made.driver.quit()


def link(daemons: Daemons) -> str:
    answer = daemons.ask(m.OpenWeb())
    return f"{answer['url']}#login={answer['code']}"


def test_a_worker_that_has_no_code_sees_a_form(daemons: Daemons, browser: Browser) -> None:
    browser.open(daemons.ask(m.OpenWeb())["url"])
    browser.until_text("Code or token")
    browser.picture("login")
    browser.run("document.getElementById('word').value = 'wrong'")
    browser.click("document.querySelector('form button')")
    browser.until_text("this is no valid code or token")
    assert browser.run("document.querySelector('[role=alert]') !== null")


def test_a_live_run_is_watched(daemons: Daemons, browser: Browser, job: str) -> None:
    browser.open(link(daemons))
    browser.until_text(job)
    browser.until("[...document.querySelectorAll('svg.ring circle')].length === a[0]", WORKERS)
    browser.until("document.querySelectorAll('.js-plotly-plot').length === 2")
    browser.until_text("generation running")
    assert browser.run("location.hash") == "#/"
    assert browser.run("document.querySelector('main h1, main section') !== null")
    browser.picture("overview")
    browser.picture("overview-dark", dark=True)
    browser.picture("overview-phone", width=390)


def test_what_somebody_zooms_to_stays_when_the_curve_is_drawn_again(
    browser: Browser, job: str
) -> None:
    browser.run(
        "(async () => { const place = document.getElementById('curve-loss');"
        " await Plotly.relayout(place, {'xaxis.range': [3, 7]});"
        " place.on('plotly_afterplot', () => { document.body.dataset.again = 1; }); })()"
    )
    browser.until("document.body.dataset.again")
    assert browser.run("document.getElementById('curve-loss').layout.xaxis.range") == [3, 7]


def test_a_coordinator_that_does_not_answer_is_told_and_old_data_is_dim(
    daemons: Daemons, browser: Browser, job: str
) -> None:
    coordinator = daemons.child("coordinator")
    coordinator.signal_group(signal.SIGSTOP)
    try:
        browser.until("!document.getElementById('stale').hidden")
        browser.until_text("The coordinator has not responded for")
        assert browser.run("document.getElementById('main').classList.contains('stale')")
    finally:
        coordinator.signal_group(signal.SIGCONT)
    browser.until("document.getElementById('stale').hidden")


def test_what_a_job_prints_is_text(browser: Browser, job: str) -> None:
    browser.run("location.hash = '#/logs'")
    browser.until_text("a quiet line")
    shown = browser.text()
    assert '<img src=x onerror="window.taken=1"><script>window.taken=1</script>' in shown
    assert "\\u202edlrow" in shown
    assert browser.run("window.taken === undefined && !document.querySelector('main img')")
    browser.run(
        "(() => { const find = document.getElementById('log-text'); find.value = 'QUIET';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    browser.until("document.querySelectorAll('.lines mark').length === a[0]", WORKERS)
    assert "onerror" not in browser.text()
    browser.picture("logs")


def test_every_other_page(browser: Browser, job: str) -> None:
    for page, expected in (
        (f"job/{job}", "Settings"),
        ("runs", "Select two or more to compare"),
        ("checkpoints", "Fetch one with"),
        ("events", "errors only"),
    ):
        browser.run(f"location.hash = '#/{page}'")
        browser.until_text(expected)
        if page.startswith("job"):
            browser.until_text("Memory of the training by worker")
            browser.until_text(f"dtdctl profile {job}")
            browser.click("document.getElementById('report')")
            browser.until("document.getElementById('announce').textContent === a[0]", SAVED)
            browser.until("document.querySelectorAll('.js-plotly-plot').length >= 4")
        if page == "events":
            browser.choose("pick-level", "all")
            browser.until("document.querySelectorAll('#time-line path.point').length > 0")
        browser.picture(page.split("/", maxsplit=1)[0])
    assert browser.complaints() == []


def test_a_command_is_copied(browser: Browser, job: str) -> None:
    granted = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", granted)
    browser.run(f"location.hash = '#/job/{job}'")
    button = f"document.querySelector('[aria-label=\"Copy dtdctl profile {job}\"]')"
    browser.until(button)
    copied = browser.driver.execute_async_script(
        f"const done = arguments[0], button = {button};"
        " const look = async () => button.textContent === 'Copied'"
        " && done(await navigator.clipboard.readText());"
        " new MutationObserver(look).observe(button, {childList: true}); button.click();"
    )
    assert copied == f"dtdctl profile {job}"


def test_a_worker_is_killed_while_the_page_is_watched(
    daemons: Daemons, browser: Browser, gates: Gates, job: str
) -> None:
    browser.run("location.hash = '#/'")
    browser.until("document.querySelector('[aria-label=\"Kill worker-1\"]')")
    browser.until("document.getElementById('curve-loss')?.data?.length")
    browser.run("window.drawn = document.getElementById('curve-loss')")
    browser.click("document.querySelector('[aria-label=\"Kill worker-1\"]')")
    browser.until_text("Kill worker-1?")
    browser.picture("kill")
    browser.click("document.querySelector('dialog .sure')")
    headline = "document.querySelector('.incident .headline')?.innerText"
    browser.until(f"{headline} === 'worker-1 killed · recovering …'")
    browser.until("document.querySelector('.ring .node.lost') !== null")
    assert browser.run("document.getElementById('curve-loss') === window.drawn"), "it is blank"
    browser.click("document.querySelector('.incident summary')")
    browser.until_text("SIGKILL sent to worker-1")
    browser.picture("worker-lost")
    entries = daemons.ask(m.ReadAudit(what="KILL_WORKER"))["entries"]
    assert [(one["address"], one["about"]["name"]) for one in entries] == [
        ("127.0.0.1 (web)", "worker-1")
    ]
    gates.open(0)
    browser.until("document.querySelector('.ring.healed') !== null")
    assert daemons.wait(job)["state"] == "done"
    browser.until_text("No job running")
    told = "worker-1 killed · detected in .* s · recovered in .* s · 0 steps lost · replicas equal"
    browser.until(f"/^{told}$/.test({headline})")
    strip = "document.querySelector('.strip').innerText"
    browser.until(f"/^1\\s+fault survived\\s+0\\s+steps lost/.test({strip})")


def test_jobs_are_compared(daemons: Daemons, browser: Browser, job: str) -> None:
    again = daemons.submit("optimizer.lr=0.01", "job.epochs=1")
    assert daemons.wait(again)["state"] == "done"
    browser.run(f"location.hash = '#/compare?jobs={job},{again}'")
    browser.until_text("optimizer.lr")
    browser.until_text("Best loss")
    browser.until("document.querySelectorAll('.js-plotly-plot').length >= 2")
    browser.picture("compare")


def test_logs_and_curves_are_those_of_the_job_that_is_named(
    daemons: Daemons, browser: Browser, job: str
) -> None:
    """A job that has no points yet has another one's neither; a choice is made once."""
    gates = daemons.hold(1)
    browser.run("location.hash = '#/'")
    browser.until("document.getElementById('curve-loss')?.data?.length")
    other = daemons.submit(gates=gates)
    named = "document.querySelector('main').innerText.includes(a[0])"
    drawn = "document.getElementById('curve-loss')?.data?.length"
    browser.until(f"{named} && !{drawn}", f"{other}\n")
    browser.run(f"location.hash = '#/logs/{job}'")
    browser.until_text("a quiet line")
    browser.choose("log-job", other)
    listed = "document.querySelector('.lines')?.innerText"
    browser.until(f"{listed}?.includes('built by') && !{listed}.includes('a quiet line')")
    assert browser.run("[location.hash, document.getElementById('log-job').value]") == [
        f"#/logs/{other}",
        other,
    ]
    gates.open(0)
    assert daemons.wait(other)["state"] == "done"


def test_a_failed_job_shows_its_traceback_and_what_to_do(
    daemons: Daemons, browser: Browser
) -> None:
    failed = daemons.submit("task.fails_at=2")
    assert daemons.wait(failed)["state"] == "failed"
    browser.run(f"location.hash = '#/job/{failed}'")
    browser.until("document.querySelector('pre.traceback')?.innerText.includes('row 17 is odd')")
    assert f"dtdctl submit JOB.toml --resume-from {failed}" in browser.text()
    assert "gated_task.py" in browser.run("document.querySelector('pre.traceback').innerText")
    browser.click("document.querySelector('.failure summary')")
    browser.until("document.querySelector('.failure details pre').offsetHeight > 0")
    browser.picture("failed", width=390)


def test_a_model_gets_an_alias(daemons: Daemons, browser: Browser, job: str) -> None:
    daemons.ask(m.RegisterModel(name="planes", job=job))
    browser.run("location.hash = '#/models'")
    browser.until_text("planes")
    browser.run(
        "(() => { const alias = document.getElementById('alias'); alias.value = 'production';"
        " alias.dispatchEvent(new Event('input')); })()"
    )
    browser.click("document.querySelector('form.card button')")
    browser.until_text("Set the alias")
    browser.click("document.querySelector('dialog .sure')")
    browser.until("document.querySelector('tbody')?.innerText.includes('production')")
    browser.picture("models")
    (version,) = daemons.ask(m.ListModels(name="planes"))["models"]
    assert version["aliases"] == ["production"]


def test_trials_of_a_sweep_appear(daemons: Daemons, browser: Browser) -> None:
    pytest.importorskip("optuna")
    browser.run("location.hash = '#/sweeps'")
    browser.until("document.querySelector('main .empty')")
    gates = daemons.hold(2)
    job = {"name": "swept", "task": "gated_task:Gated", "epochs": 1, "global_batch_size": 128}
    daemons.ask(m.BeginSweep(spec={**SWEEP, "base": {"job": job, "task": gates.task}}))
    browser.until("document.querySelector('a[href=\"#/sweeps/sweep-1\"]')")
    browser.picture("sweeps")
    browser.click("document.querySelector('a[href=\"#/sweeps/sweep-1\"]')")
    browser.until("document.querySelectorAll('.parallel .trial.open').length === 1")
    gates.open(0)
    browser.until("document.querySelectorAll('.parallel .trial:not(.open)').length === 3")
    browser.until("document.querySelector('main h1 + .state')?.innerText === 'done'")
    browser.until("document.querySelectorAll('#values.js-plotly-plot').length === 1")
    (best,) = browser.run(
        "[...document.querySelectorAll('tr')].filter(r => r.querySelector('.best'))"
        ".map(r => r.querySelector('a').innerText)"
    )
    assert best == daemons.ask(m.ShowSweep(sweep="sweep-1"))["best"]["job"]
    browser.run("document.querySelector('.parallel .grip').focus()")
    for pressed, told in (("ArrowUp", "from 10 to 100 % of the axis"), ("Escape", "all")):
        event = "new KeyboardEvent('keydown', {key: arguments[0]})"
        browser.run(f"document.activeElement.dispatchEvent({event})", pressed)
        assert browser.run("document.activeElement.getAttribute('aria-valuetext')") == told
    browser.picture("sweep")
    browser.picture("sweep-phone", width=390, dark=True)
    assert browser.complaints() == []


def test_logging_out_ends_it(browser: Browser) -> None:
    browser.run("location.hash = '#/'")
    browser.until("[...document.querySelectorAll('button')].some(b => b.innerText === 'Log out')")
    browser.click("[...document.querySelectorAll('button')].find(b => b.innerText === 'Log out')")
    browser.until_text("Code or token")
    assert browser.complaints() == []


def test_beyond_this_host_the_page_is_https(tmp_path: Path, pictures: Path) -> None:
    cluster = Beyond(tmp_path, "--web", "0.0.0.0:0")
    browser = Browser(pictures, "--ignore-certificate-errors")
    try:
        told = cluster.ask(m.OpenWeb())
        port = told["url"].rstrip("/").rpartition(":")[2]
        browser.open(f"https://127.0.0.1:{port}/#login={told['code']}")
        browser.until_text("No workers yet")
        browser.until_text("live")
        assert browser.run("isSecureContext")
        assert browser.driver.get_cookies()[0]["name"].startswith("__Host-")
        assert browser.complaints() == []
    finally:
        browser.driver.quit()
        cluster.stop()
