"""The monitor's page in headless Chromium: what a person sees of a real run, on a desk and on a phone."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from server_app.results.folder import RunFolder
from server_app.results.report import write_report
from tests.support.chromium import arguments, chromium
from tests.support.monitor import EVIL, client_row, round_row, write_run

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.timeout(1500),
]  # the browser may have to be installed first
BOUQUET = str(Path(sys.executable).with_name("bouquet"))
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
SOON_MS = 30_000  # some looks of 2 s, on a busy machine

expect.set_options(timeout=SOON_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments())
        yield started
        started.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real result folder of five rounds."""
    runs = tmp_path_factory.mktemp("demo")
    command = [BOUQUET, "run", "--recipe", "demo", "--run-name", "demo", "--runs-dir", str(runs)]
    subprocess.run([*command, "-c", 'num-server-rounds=5 progress="none"'], check=True, timeout=300)
    return runs / "demo"


@pytest.fixture
def kit(tmp_path: Path, demo: Path) -> Path:
    """A link's kit with the real run, one with a hostile client, and a status."""
    link = tmp_path / "link"
    shutil.copytree(demo, link / "runs" / "demo")
    folder = write_run(link / "runs" / "hostile", 3)
    folder.append_round(round_row(3, dropped=1))
    folder.append_clients([client_row(EVIL, 3, 0.25), client_row("ward-1", 3, 0.75)])
    (link / "kit.toml").write_text('kind = "link"\n')
    (link / "jobs").mkdir()
    job = {"name": "next", "state": "queued", "keys": {}, "attempts": 0, "reason": EVIL}
    (link / "jobs" / "next.json").write_text(json.dumps(job))
    (link / "state").mkdir()
    nodes = [
        {"name": name, "online": online, "last_seen": time.time() - 5, "clients": 2, "examples": 1200}
        for name, online in (("ward-1", True), (EVIL, False))
    ]
    processes = [{"name": "superlink", "running": True, "pid": 7, "restarts": 3, "uptime_s": 61.0}]
    status = {
        "written": time.time(),
        "nodes": nodes,
        "processes": processes,
        "warnings": [f"beware of {EVIL}"],
    }
    (link / "state" / "status.json").write_text(json.dumps(status))
    return link


@pytest.fixture
def site(kit: Path) -> Iterator[str]:
    """The address of ``bouquet monitor``, which ends well when asked to."""
    command = [BOUQUET, "monitor", str(kit), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found, line + process.communicate(timeout=60)[1]
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "monitor stopped\n")


class Watch:
    """A page, and what went wrong in it."""

    def __init__(self, page: Page, site: str) -> None:
        self.page = page
        self.asked: list[str] = []
        self.wrong: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self.wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.site = site

    def open(self, path: str) -> Page:
        self.page.goto(self.site + path)
        expect(self.page.get_by_role("status")).to_have_text("Live, every 2 s")
        return self.page


@pytest.fixture
def watch(browser: Browser, site: str) -> Iterator[Callable[..., Watch]]:
    watches = []
    with ExitStack() as stack:

        def start(**options: Any) -> Watch:
            context = stack.enter_context(browser.new_context(**{"viewport": DESK} | options))
            watches.append(Watch(context.new_page(), site))
            return watches[-1]

        yield start
        for one in watches:
            assert one.wrong == []
            assert one.asked
            assert all(url.startswith(f"{site}/") for url in one.asked)


Start = Callable[..., Watch]


def rows(page: Page, caption: str | re.Pattern[str]) -> Locator:
    return page.get_by_role("table", name=caption).locator("tbody tr")


def series(page: Page, plot: str, name: str) -> Locator:
    return page.locator(f'#plot-{plot} [data-series="{name}"]')


def points(page: Page, plot: str, name: str) -> int:
    """Return how many points a line goes through."""
    way = series(page, plot, name).locator("path").get_attribute("d")
    return len(re.findall("[ML]", way or ""))


def test_a_real_run_is_shown_and_followed(watch: Start, kit: Path) -> None:
    page = watch().open("/")
    table = page.get_by_role("table", name="Runs, latest first")
    for head in ("Run", "State", "Algorithm", "Round", "Accuracy", "Job", "Started", "Last updated"):
        expect(table.get_by_role("columnheader", name=head, exact=True)).to_be_visible()
    line = table.get_by_role("row").filter(has=page.get_by_role("link", name="demo"))
    expect(line).to_contain_text("finished")
    expect(line).to_contain_text("5 of 5")
    expect(table.get_by_role("row").filter(has_text="next")).to_contain_text("queued")
    page.get_by_role("link", name="demo").click()
    expect(page.get_by_role("heading", level=1, name="demo")).to_be_visible()
    latest = rows(page, "Rounds, latest first")
    expect(latest).to_have_count(6)  # the evaluation before the first round, and five
    folder = RunFolder(kit / "runs" / "demo")
    last = folder.rounds()[-1]
    cells = latest.first.locator("th, td")
    expect(cells.nth(0)).to_have_text("5")
    expect(cells.nth(1)).to_have_text(f"{last['accuracy']:.3f}")
    assert points(page, "accuracy", "central test set") == 6
    expect(series(page, "accuracy", "central test set").locator("circle")).to_have_count(6)
    assert points(page, "loss", "training") == 5
    assert points(page, "bytes", "to clients") == points(page, "replies", "asked") == 5
    phases = {phase for row in folder.rounds() for phase in row["seconds"] if phase != "total"}
    expect(page.locator("#plot-seconds g[data-series]")).to_have_count(len(phases))
    expect(series(page, "seconds", "train").locator("rect")).to_have_count(6)
    expect(page.get_by_text("None.", exact=True)).to_be_visible()
    clients = {line["name"]: line for line in folder.clients() if line["phase"] == "evaluate"}
    shown = rows(page, "Latest numbers of each client")
    expect(shown).to_have_count(10)
    for name, client in clients.items():
        accuracy = float(shown.filter(has_text=name).locator("td").first.inner_text())
        assert accuracy == pytest.approx(client["metrics"]["accuracy"], abs=0.000501)

    page.locator("#plot-loss .hit").nth(2).hover()
    expect(page.locator("#plot-loss .readout")).to_contain_text("round 2: central test set ")
    page.get_by_role("heading", level=1).hover()
    expect(page.locator("#plot-loss .readout")).to_contain_text("round 5: ")

    folder.append_round(last | {"round": 6, "accuracy": 0.123456})
    expect(latest).to_have_count(7)
    expect(cells.nth(1)).to_have_text("0.123")
    assert points(page, "accuracy", "central test set") == 7
    expect(page.locator("#facts")).to_contain_text("6 of 5")


def test_a_half_written_line_waits_for_its_end(watch: Start, kit: Path) -> None:
    page = watch().open("/runs/hostile")
    latest = rows(page, "Rounds, latest first")
    expect(latest).to_have_count(4)
    line = json.dumps(round_row(4)) + "\n"
    with (kit / "runs" / "hostile" / "rounds.jsonl").open("a") as file:
        file.write(line[:200])
        file.flush()
        with page.expect_response("**/rounds?after=*") as first, page.expect_response("**/clients"):
            pass
        assert first.value.json()["rounds"] == []
        expect(latest).to_have_count(4)
        file.write(line[200:])
    expect(latest).to_have_count(5)


def test_what_a_client_says_is_text(watch: Start, kit: Path) -> None:
    page = watch().open("/runs/hostile")
    [dropped] = rows(page, re.compile("^1 dropped before")).all()
    expect(dropped.locator("th")).to_have_text(EVIL)
    expect(dropped.locator("td")).to_have_text(
        ["3", "field arrays/w: expected finite numbers; got NaN <b>at</b> 0"]
    )
    expect(rows(page, "Latest numbers of each client").locator("th").first).to_have_text(EVIL)
    for path in ("/", "/nodes"):
        expect(watch().open(path).locator("main")).to_contain_text(EVIL)
    for inserted in ("script:not([src='/app.js'])", "main b", "main script"):
        expect(page.locator(inserted)).to_have_count(0)
    assert page.evaluate("window.pwned") is None


def test_nodes_and_processes_are_shown(watch: Start) -> None:
    page = watch().open("/nodes")
    expect(page.get_by_role("alert")).to_have_text(f"beware of {EVIL}")
    online, offline = rows(page, "Nodes").all()
    expect(online).to_contain_text("online")
    expect(online).to_contain_text("1,200")
    expect(offline).to_contain_text("offline")
    expect(online.locator("time")).to_have_text(re.compile(r"^\d+ s ago$"))
    expect(rows(page, "Processes of the link").locator("td")).to_have_text(["▶ running", "0:01:01", "7", "3"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page_fits_in_both_themes(watch: Start, theme: str, viewport: dict[str, int]) -> None:
    one = watch(viewport=viewport, color_scheme=theme, has_touch=viewport is PHONE)
    for path in ("/", "/runs/demo", "/runs/hostile", "/nodes"):
        page = one.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], path
        paper, ink = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        light, dark = sorted((paper, ink), key=lambda c: -sum(map(int, re.findall(r"\d+", c)[:3])))
        assert (paper, ink) == ((light, dark) if theme == "light" else (dark, light))
        for heading in page.get_by_role("heading").all():
            box = heading.bounding_box()
            assert box is not None
            assert 0 <= box["x"] < box["x"] + box["width"] <= viewport["width"]


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_a_report_is_the_page_of_its_run_as_a_file(
    browser: Browser, demo: Path, viewport: dict[str, int], tmp_path: Path
) -> None:
    """Opened from the disk, where no module and no other file is loaded; drawn again, it repeats nothing."""
    shutil.copytree(demo, tmp_path / "demo")
    write_report(tmp_path / "demo")
    page = browser.new_page(viewport=viewport, color_scheme="dark")  # type: ignore[arg-type]
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((tmp_path / "demo" / "report.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("demo")
    assert page.locator("figure svg").count() == 8
    page.set_viewport_size(viewport | {"width": viewport["width"] - 20})  # type: ignore[arg-type]
    page.wait_for_timeout(500)
    assert page.locator("#rounds tbody tr").count() == 6  # round 0 is one
    assert page.locator("#clients tbody tr").count() == 10
    expect(page.locator("#repeat code")).to_contain_text("bouquet run -c")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wrong == []
    page.close()


def test_a_report_shows_what_was_read_and_its_wide_tables_scroll_at_1100_pixels(
    browser: Browser, demo: Path, tmp_path: Path
) -> None:
    """The page does not scroll sideways, each table does; classes are called by their names."""
    folder = RunFolder(shutil.copytree(demo, tmp_path / "demo"))
    config = folder.config()
    named = {f"number {c}": counts for c, counts in enumerate(config["data"]["classes"]["listed"].values())}
    config["data"]["classes"]["listed"] = named
    config["data"]["columns"] = {
        "count": 60, "target": "digit", "other": {}, "listed": {f"column-{i}": "number" for i in range(60)},
    }  # fmt: skip
    (folder.path / "config.json").write_text(json.dumps(config))
    measures = dict.fromkeys(("client_accuracy", "client_loss", "train_loss", "epsilon"), 0.123)
    folder.append_round(round_row(6) | measures)
    write_report(folder.path)
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.goto((folder.path / "report.html").as_uri())
    data = page.locator("#data")
    expect(data).to_contain_text("60: column-0 (number), column-1 (number)")
    expect(data).to_contain_text("number 0 (")
    expect(page.locator("#plot-labels")).to_contain_text("number 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    latest = page.get_by_role("region", name="Rounds, latest first")
    assert latest.evaluate("e => e.scrollWidth > e.clientWidth")
    latest.evaluate("e => e.scrollLeft = 1e6")
    last = latest.get_by_role("columnheader", name="Note").bounding_box()
    assert last is not None
    assert last["x"] + last["width"] <= 1100
    for table in page.locator("table").all():
        assert table.evaluate("e => e.closest('.wide') !== null || e.classList.contains('cards')")
    page.close()


def test_who_does_not_see_hears_the_same(watch: Start) -> None:
    page = watch(viewport=PHONE).open("/runs/hostile")
    plot = page.get_by_role("img", name=re.compile("^Accuracy share of examples, rounds 0 to 3"))
    expect(plot).to_have_accessible_name(re.compile(r"Latest: round 3: central test set 0\.775$"))
    expect(page.locator("svg:not([role=img]):not([aria-hidden=true])")).to_have_count(0)
    # As cards on a phone it is still a table with named columns.
    table = page.get_by_role("table", name=re.compile("dropped before"))
    expect(table.get_by_role("columnheader")).to_have_text(["Client", "Round", "Reason"])
    expect(table.get_by_role("rowheader")).to_have_text(EVIL)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_a_pause_holds_the_page_still(watch: Start, kit: Path) -> None:
    page = watch().open("/runs/hostile")
    latest = rows(page, "Rounds, latest first")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_have_text("Paused")
    RunFolder(kit / "runs" / "hostile").append_round(round_row(4))
    page.wait_for_timeout(5000)
    expect(latest).to_have_count(4)
    page.get_by_role("button", name="Pause").click()
    expect(latest).to_have_count(5)


def test_a_run_that_is_cut_back_or_deleted(browser: Browser, site: str, kit: Path) -> None:
    with browser.new_context(viewport=DESK) as context:
        page = Watch(context.new_page(), site).open("/runs/hostile")
        latest = rows(page, "Rounds, latest first")
        expect(latest).to_have_count(4)
        folder = RunFolder(kit / "runs" / "hostile")
        folder.truncate({"rounds": len((json.dumps(round_row(0)) + "\n").encode()), "clients": 0})
        expect(latest).to_have_count(1)
        assert points(page, "accuracy", "central test set") == 1
        shutil.rmtree(folder.path)
        expect(page.get_by_role("alert")).to_have_text("There is no such run, or it was deleted.")
        expect(page.get_by_role("status")).to_have_text("Waiting for the run")
        write_run(folder.path, 2)
        expect(latest).to_have_count(2)
        expect(page.get_by_role("alert").filter(has_text="no such run")).to_have_count(0)
        page.goto(f"{site}/runs/nothing")
        expect(page.get_by_role("alert")).to_have_text("There is no such run, or it was deleted.")


def test_a_monitor_that_ended_is_said(browser: Browser, kit: Path) -> None:
    command = [BOUQUET, "monitor", str(kit), "--port", "0"]
    with (
        browser.new_context(viewport=DESK) as context,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found
            page = Watch(context.new_page(), found[0]).open("/")
        finally:
            process.terminate()
            process.wait(timeout=60)
        expect(page.get_by_role("status")).to_contain_text("trying again")
        expect(rows(page, "Runs, latest first")).to_have_count(3)


def test_a_port_in_use_ends_with_one_line(site: str, kit: Path) -> None:
    port = site.rsplit(":", 1)[1]
    command = [BOUQUET, "monitor", str(kit), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 78
    assert re.fullmatch(
        rf"error: monitor: .* --port {port}: another program listens there; .*\n", done.stderr
    )
