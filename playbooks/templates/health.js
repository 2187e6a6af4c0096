"use strict";
(() => {
  const rows = [...document.querySelectorAll("tr.row")].map((row) => ({
    row,
    state: row.dataset.state,
    text: row.textContent.toLowerCase(),
  }));
  const search = document.getElementById("search");
  const boxes = [...document.querySelectorAll('input[name="state"]')];
  const shown = document.getElementById("shown");

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const states = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    let count = 0;
    for (const each of rows) {
      const fits = states.has(each.state) && words.every((word) => each.text.includes(word));
      if (each.row.hidden === fits) each.row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} rows`;
  };
  search.addEventListener("input", filter);
  for (const box of boxes) box.addEventListener("change", filter);
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  filter();

  // The mounts of a slot are made when somebody opens them: thousands of slots have the same ones.
  let details = null;
  const open = (place) => {
    if (place.dataset.filled) return;
    place.dataset.filled = "yes";
    details ??= JSON.parse(document.getElementById("details").textContent);
    const list = document.createElement("ul");
    for (const number of details.mounts[place.dataset.slot] ?? []) {
      const [kind, mode, target, reason] = details.lines[number];
      const item = document.createElement("li");
      const path = document.createElement("code");
      path.textContent = target;
      item.append(path, ` ${[kind, mode].filter(Boolean).join(" ")}: ${reason}`);
      list.append(item);
    }
    place.append(list);
  };
  for (const place of document.querySelectorAll("details[data-slot]")) {
    place.addEventListener("toggle", () => place.open && open(place));
  }
})();
