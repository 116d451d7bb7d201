"""The README's picture of the explorer, from a server that runs: `elmo serve`, and beside it

python scripts/explorer_picture.py http://127.0.0.1:8000 -o docs/explorer.png

It needs playwright and a Chromium of the system. With --scheme dark, --width 390 and so on it takes others.
"""  # noqa: D400, D415 - its first line ends at the command

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    """Ask for a word, choose one of its uses, take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--word", default="play")
    parser.add_argument("--use", default="music is hard to play", help="words of the context of the use that is chosen")
    parser.add_argument("--layer", default="2")
    parser.add_argument("--text", default="", help="sentences of one's own")
    parser.add_argument("--compare", nargs=2, metavar=("FIRST", "SECOND"))
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--width", type=int, default=1240)
    parser.add_argument("--height", type=int, default=1115)
    parser.add_argument("--whole", action="store_true", help="all of the page, not only its top")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        root = hasattr(os, "geteuid") and os.geteuid() == 0  # whom Chromium gives no sandbox
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"] if root else []
        )
        page = browser.new_page(
            viewport={"width": options.width, "height": options.height},
            color_scheme=options.scheme,
            reduced_motion="reduce",
        )
        page.goto(options.address)
        page.wait_for_selector("#candidates li")
        page.wait_for_selector("#matrix td")
        page.locator("#text").evaluate("(node, text) => { node.value = text; }", options.text)
        page.get_by_label("Word", exact=True).fill(options.word)
        with page.expect_response("**/explorer/use"):
            page.get_by_role("button", name="Show its uses").click()
        page.get_by_role("slider", name="Layer", exact=True).fill(options.layer)
        if options.use:
            with page.expect_response("**/explorer/use"):
                page.locator(f"#points .point[aria-label*='{options.use}']").first.dispatch_event("click")
        if options.compare:
            page.get_by_label("First").fill(options.compare[0])
            page.get_by_label("Second").fill(options.compare[1])
            with page.expect_response("**/explorer/compare"):
                page.get_by_role("button", name="Compare").click()
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.wait_for_timeout(300)
        page.screenshot(path=options.out, full_page=options.whole)
        browser.close()
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
