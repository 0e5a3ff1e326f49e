"""What every page of a server must show and withstand: the focus, contrasts, names of controls, hostile texts."""

from browser import Opened
from playwright.sync_api import Page

HOSTILE = {
    "markup": "</textarea><script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">",
    "bidi": "\u202eevil txet \u2066 hidden \u200b zero \ufeff",
    "long word": "w" * 3000,
    "ten thousand": "line and\n" * 1111 + "end",
    "stacked": "Z" + "\u0335\u0321\u031b" * 200,
    "control": "a\0b\x1b[31mred\x07",
}
CONTRASTS = """() => {
  const channel = (x) => (x /= 255) <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const ground = (e) => { for (; e; e = e.parentElement) {
    const color = numbers(getComputedStyle(e).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color; } return [255, 255, 255]; };
  return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest("option, dialog") &&
    [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
      const [a, b] = [light(numbers(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
      return { text: e.textContent.slice(0, 40), ratio: (a + .05) / (b + .05) }; });
}"""
"""the contrast of every visible text with what is behind it"""
UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea")].filter((e) =>
  !(e.ariaLabel || e.textContent.trim() && e.tagName === "BUTTON" || e.labels?.length)).map((e) => e.outerHTML)"""
"""controls that a screen reader cannot name"""


def tab_to(page: Page, testid: str, backwards: bool = False) -> None:
    """Presses Tab until the control has the focus, which must be visible on the way."""
    for _ in range(80):
        page.keyboard.press("Shift+Tab" if backwards else "Tab")
        focused = page.evaluate(
            """() => { const e = document.activeElement, style = getComputedStyle(e);
            return [e.dataset?.testid ?? "", e === document.body || style.outlineStyle !== "none"]; }"""
        )
        assert focused[1], f"the focus on {focused[0]} cannot be seen"
        if focused[0] == testid:
            return
    raise AssertionError(f"no way to {testid} by Tab")


def is_quiet(opened: Opened, url: str) -> bool:
    """True if nothing went wrong, and nothing was asked of another host."""
    assert opened.said == []
    others = [one for one in opened.requested if not one.startswith((url, "data:", f"blob:{url}"))]
    assert others == []
    return True
