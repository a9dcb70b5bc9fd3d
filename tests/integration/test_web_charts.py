"""The page's charts and its table of runs, used by hand in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dtd.address import Address
from dtd.wire import messages as m
from tests.integration.conftest import Daemons
from tests.integration.test_web_page import Browser, link, pytestmark

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

__all__ = ["pytestmark"]

LOSS = "document.getElementById('curve-loss')"
EPOCHS = 3


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[..., Daemons]) -> Daemons:
    return start_daemons(1, web=Address("127.0.0.1", 0))


@pytest.fixture(scope="module")
def done(daemons: Daemons) -> str:
    """A job that is done, with a tag and a note."""
    made = daemons.submit(f"job.epochs={EPOCHS}", "optimizer.lr=0.05")
    assert daemons.wait(made)["state"] == "done"
    daemons.ask(m.AnnotateJob(job=made, add=("baseline",), note="the first one", sets_note=True))
    return made


@pytest.fixture(scope="module")
def live(daemons: Daemons, done: str) -> str:
    """A job that trains until it is cancelled."""
    return daemons.submit("job.epochs=1000000")


@pytest.fixture(scope="module")
def browser(
    daemons: Daemons, live: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("pictures"))
    made.open(link(daemons))
    made.until_text(live)
    yield made
    made.driver.quit()


def go(browser: Browser, page: str, ready: str) -> None:
    browser.run("location.hash = arguments[0]", f"#/{page}")
    browser.until(ready)


def press(browser: Browser, name: str, within: str = "document") -> None:
    """Click the button with this text."""
    buttons = f"[...{within}.querySelectorAll('button')]"
    browser.until(f"{buttons}.some((one) => one.innerText.trim() === a[0])", name)
    browser.run(f"{buttons}.find((one) => one.innerText.trim() === arguments[0]).click()", name)


def drag(browser: Browser, share_from: float, share_to: float) -> None:
    """Drag over a part of the width of the chart of the loss."""
    layer = browser.driver.execute_script(f"return {LOSS}.querySelector('.nsewdrag')")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", layer)
    width = layer.size["width"]
    begin, distance = round(width * (share_from - 0.5)), round(width * (share_to - share_from))
    hand = webdriver.ActionChains(browser.driver)
    hand.move_to_element_with_offset(layer, begin, 0).click_and_hold()
    hand.move_by_offset(distance, 2).release().perform()


def double_click(browser: Browser) -> None:
    layer = browser.driver.execute_script(f"return {LOSS}.querySelector('.nsewdrag')")
    webdriver.ActionChains(browser.driver).double_click(layer).perform()


NEWEST = f"{LOSS}?.data?.[0]?.x.at(-1)"
RANGE = f"{LOSS}.layout.xaxis.range"
IS_ZOOMED = f"{LOSS}.layout.xaxis.autorange === false"
BUTTON = f"{LOSS}.parentElement.innerText.includes('Reset zoom')"


def test_a_zoom_stays_while_steps_arrive_and_can_be_reset(
    daemons: Daemons, browser: Browser, live: str
) -> None:
    browser.until(f"{NEWEST} >= 5")
    assert not browser.run(BUTTON)
    drag(browser, 0.2, 0.6)
    browser.until(f"{IS_ZOOMED} && {BUTTON}")
    chosen, newest = browser.run(f"[{RANGE}, {NEWEST}]")
    browser.until(f"{NEWEST} > a[0]", newest)
    assert browser.run(RANGE) == chosen
    press(browser, "Reset zoom", f"{LOSS}.parentElement")
    browser.until(f"!({IS_ZOOMED}) && !({BUTTON})")
    assert browser.run(f"{RANGE}[1]") > newest
    drag(browser, 0.2, 0.6)
    browser.until(IS_ZOOMED)
    double_click(browser)
    browser.until(f"!({IS_ZOOMED})")
    daemons.ask(m.CancelJob(job=live))
    assert daemons.wait(live)["state"] == "cancelled"


def test_ticks_are_whole_steps_and_plain_numbers(browser: Browser, done: str) -> None:
    go(browser, f"job/{done}", f"{LOSS}?.data?.length && {LOSS}.querySelector('.xtick')")
    drag(browser, 0.4, 0.46)
    browser.until(f"{IS_ZOOMED} && {LOSS}.layout.xaxis.dtick === 1")
    ticks = f"[...{LOSS}.querySelectorAll('.xtick text, .ytick text')].map((one) => one.innerHTML)"
    browser.until(f"{ticks}.length > 2")
    assert all(len(one) < 8 and "e" not in one for one in browser.run(ticks))
    double_click(browser)
    browser.until(f"!({IS_ZOOMED})")


def test_training_and_evaluation_share_a_chart_and_the_best_is_marked(
    daemons: Daemons, browser: Browser, done: str
) -> None:
    go(browser, f"job/{done}", f"{LOSS}?.data?.length")
    assert browser.run(f"{LOSS}.data.map((one) => one.name)") == [
        *("training", "best"),
        *("evaluation", "best"),
    ]
    (stored,) = daemons.ask(m.GetMetrics(job=done, names=("eval/loss",), points=100))["series"]
    least = min(stored["points"], key=lambda point: point[3])
    x, y = browser.run(f"(({{x, y}}) => [x[0], y[0]])({LOSS}.data[3])")
    assert (x, y) == (least[1], pytest.approx(least[3], rel=1e-3))  # rounded as it is drawn


def test_the_legend_hides_a_curve(browser: Browser, done: str) -> None:
    go(browser, f"job/{done}", f"{LOSS}?.data?.length === 4")
    press(browser, "evaluation", f"{LOSS}.parentElement")
    browser.until(f"{LOSS}.data.every((one) => one.name !== 'evaluation')")
    press(browser, "evaluation", f"{LOSS}.parentElement")
    browser.until(f"{LOSS}.data.length === 4")


def test_the_axis_is_of_steps_epochs_or_time(browser: Browser, done: str) -> None:
    go(browser, f"job/{done}", f"{LOSS}?.data?.length === 4")
    steps = browser.run(f"{LOSS}.data[0].x.at(-1)")
    press(browser, "Epoch")
    browser.until(f"{LOSS}.layout.xaxis.title.text === 'epoch'")
    assert browser.run(f"{LOSS}.data[0].x.at(-1)") == pytest.approx(EPOCHS)
    press(browser, "Time")
    browser.until(f"{LOSS}.layout.xaxis.title.text.endsWith('since the first step')")
    times = browser.run(f"{LOSS}.data[0].x")
    assert times == sorted(set(times))
    press(browser, "Step")
    browser.until(
        f"{LOSS}.layout.xaxis.title.text === 'step' && {LOSS}.data[0].x.at(-1) === a[0]", steps
    )


def test_smoothing_and_scale_are_remembered(browser: Browser, done: str) -> None:
    go(browser, f"job/{done}", f"{LOSS}?.data?.length === 4")
    raw = browser.run(f"{LOSS}.data[0].y")
    slide = (
        "((bar) => { bar.value = arguments[0]; bar.dispatchEvent(new Event('input')); })"
        "(document.getElementById('smoothing'))"
    )
    browser.run(slide, "0.9")
    browser.until(f"{LOSS}.data.length === 5")
    behind, smooth = browser.run(f"[{LOSS}.data[0].y, {LOSS}.data[1].y]")
    assert behind == raw
    assert max(smooth) - min(smooth) < max(raw) - min(raw)
    was = browser.run(f"{LOSS}.layout.yaxis.type")
    press(browser, "Log scale", f"{LOSS}.parentElement")
    browser.until(f"{LOSS}.layout.yaxis.type !== a[0]", was)
    browser.driver.refresh()
    browser.until(f"{LOSS}?.data?.length === 5 && {LOSS}.layout.yaxis.type !== a[0]", was)
    assert browser.run("document.getElementById('smoothing').value") == "0.9"
    press(browser, "Log scale", f"{LOSS}.parentElement")
    browser.run(slide, "0")
    browser.until(f"{LOSS}.data.length === 4")


ROWS = "[...document.querySelectorAll('table.runs tbody tr')]"
NAMES = f"{ROWS}.map((one) => one.dataset.key)"


def test_runs_are_sorted_filtered_and_shown_by_chosen_columns(
    browser: Browser, done: str, live: str
) -> None:
    go(browser, "runs", f"{ROWS}.length === 2")
    assert browser.run(NAMES) == [live, done]
    press(browser, "Steps")
    browser.until(f"{NAMES}[0] === a[0]", live)
    press(browser, "Steps ↓")
    browser.until(f"{NAMES}[0] === a[0]", done)
    find = (
        "((box) => { box.value = arguments[0]; box.dispatchEvent(new Event('input')); })"
        "(document.getElementById('wanted'))"
    )
    browser.run(find, "the first one")
    browser.until(f"{ROWS}.length === 1 && {NAMES}[0] === a[0]", done)
    browser.run(find, "")
    browser.until(f"{ROWS}.length === 2")
    browser.run(
        "((tag) => { tag.value = 'baseline'; tag.dispatchEvent(new Event('change')); })"
        "(document.getElementById('tag'))"
    )
    browser.until(f"{ROWS}.length === 1 && {NAMES}[0] === a[0]", done)
    browser.run(
        "((tag) => { tag.value = ''; tag.dispatchEvent(new Event('change')); })"
        "(document.getElementById('tag'))"
    )
    heads = "[...document.querySelectorAll('table.runs thead th')].map((one) => one.innerText)"
    assert not browser.run(f"{heads}.some((one) => one.includes('Task'))")
    browser.run(
        "[...document.querySelectorAll('.columns label')]"
        ".find((one) => one.textContent === 'Task').querySelector('input').click()"
    )
    browser.until(f"{heads}.some((one) => one.includes('Task'))")
    browser.driver.refresh()
    browser.until(f"{heads}.some((one) => one.includes('Task'))")
    heights = browser.run(f"{ROWS}.map((one) => one.clientHeight)")
    assert max(heights) < 45  # rows of one line


def test_the_best_value_of_a_metric_is_in_the_table(
    daemons: Daemons, browser: Browser, done: str
) -> None:
    go(browser, "runs", f"{ROWS}.length === 2")
    (stored,) = daemons.ask(m.GetMetrics(job=done, names=("eval/loss",), points=1))["series"]
    browser.until(
        f"{ROWS}.find((one) => one.dataset.key === a[0]).innerText.includes(a[1])",
        *(done, f"{stored['points'][0][3]:.4g}"),
    )


def test_selected_runs_are_compared_in_the_same_charts(
    browser: Browser, done: str, live: str
) -> None:
    go(browser, "runs", f"{ROWS}.length === 2")
    for job in (done, live):
        browser.run('document.querySelector(`[aria-label="Compare ${arguments[0]}"]`).click()', job)
    press(browser, "Compare 2")
    browser.until(f"{LOSS}?.data?.length")
    names = f"new Set({LOSS}.data.map((one) => one.name).filter((one) => one !== 'best'))"
    assert set(browser.run(f"[...{names}]")) == {done, live}
    press(browser, done, f"{LOSS}.parentElement")
    browser.until(f"!{names}.has(a[0])", done)
    press(browser, done, f"{LOSS}.parentElement")
    press(browser, "Epoch")
    browser.until(f"{LOSS}.layout.xaxis.title.text === 'epoch' && {names}.size === 2")
    press(browser, "Step")
    assert browser.complaints() == []
