"""Light and dark for reports: colours of pages and charts for each, and the script that follows the reader's scheme.

A page follows ``prefers-color-scheme``, and is light in print. Charts are drawn on canvases, which no style sheet
reaches: they are made in the colours for light, and the script exchanges those of a chart's parts for their
counterparts on dark, and back.
"""

from __future__ import annotations

import json

from vppc.render.palette import DARK, HUES, LIGHT

SECTION = "#161b22"
"""What charts lie on in the dark."""

LINES = ("#0072b2", "#d55e00", LIGHT.ink, "#009e73")
"""Lines of charts, on light: more would not remain apart to every eye."""
CAUSES = ("#aab3bc", "#56b4e9", "#f2b134", "#c0398f", "#7458c0", "#2f9e44")
"""The causes of bubbles, on light and on dark; none is a shade of a request that could be taken for it."""
WORK = {
    "compute": HUES[0].dark,
    "collective": "#7fb3dc",
    "exposed transfer": LIGHT.exposed,
    "launch stall": "#e6c36a",
    "free": "#d9dde2",
}
"""What ranks spend their time on, on light."""
REPAINTED = "repainted"
"""The tag of data whose column ``color`` is exchanged, too."""

LINES_ON_DARK = ("#56b4e9", "#ff8c4a", DARK.ink, "#009e73")
_COUNTERPARTS = {
    "white": SECTION,
    "#ffffff": SECTION,
    "black": DARK.faint,
    "#000000": DARK.faint,
    "#444444": DARK.ink,
    "#e5e5e5": "#2b333d",
    LIGHT.ink: DARK.ink,
    LIGHT.exposed: DARK.exposed,
    WORK["collective"]: "#3f7fb5",
    WORK["launch stall"]: "#c79f3c",
    WORK["free"]: DARK.hatch,
    **dict(zip(LINES, LINES_ON_DARK, strict=True)),
    **{hue.dark: hue.light for hue in HUES},
}
"""Of each colour on light, Bokeh's own among them, the one on dark."""

_PAINT = """
const kept = new Map()
const repainted = (model, name, color, dark) => {
  const key = `${model.id}.${name}`
  if (dark && !kept.has(key) && counterparts.has(color)) kept.set(key, color)
  return kept.has(key) ? (dark ? counterparts.get(kept.get(key)) : kept.get(key)) : color
}
const paint = dark => {
  for (const page of Bokeh.documents) for (const model of page._all_models.values()) {
    const found = {}
    for (const property of model) {
      if (!property.attr.endsWith("_color")) continue
      const value = property.get_value(), spec = value !== null && typeof value == "object"
      const color = spec ? value.value : value
      if (typeof color != "string") continue
      const other = repainted(model, property.attr, color, dark)
      if (other != color) found[property.attr] = spec ? {...value, value: other} : other
    }
    model.setv(found)
    if (model.tags?.includes(tag))
      model.data = {...model.data, color: model.data.color.map((color, i) => repainted(model, i, color, dark))}
  }
}
const dark = matchMedia("(prefers-color-scheme: dark)")
const start = () => {
  if (!window.Bokeh?.documents.length) return requestAnimationFrame(start)
  dark.addEventListener("change", () => paint(dark.matches))
  addEventListener("beforeprint", () => paint(false))
  addEventListener("afterprint", () => paint(dark.matches))
  if (dark.matches) paint(true)
}
start()
"""
SCRIPT = f"const counterparts = new Map(Object.entries({json.dumps(_COUNTERPARTS)})), tag = '{REPAINTED}'{_PAINT}"
"""Paints the charts as the reader's scheme is, now and when it changes."""

STYLE = f"""
:root{{color-scheme:light dark;--page:#f5f6f8;--section:#fff;--edge:#dfe3e8;--line:#edf0f3;--ink:{LIGHT.ink};\
--faint:{LIGHT.faint}}}
@media screen and (prefers-color-scheme:dark){{:root{{--page:{DARK.paper};--section:{SECTION};--edge:#2b333d;\
--line:#222a33;--ink:{DARK.ink};--faint:{DARK.faint}}}}}
@media print{{:root{{color-scheme:light;--page:#fff}}}}
"""
"""The colours of a page, by what they are for."""
