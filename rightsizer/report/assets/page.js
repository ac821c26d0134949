(() => {
  "use strict";
  const table = document.querySelector("table.workloads");
  if (!table) return;
  const groups = [...table.tBodies];
  const [search, verdict, finding] = ["search", "verdict", "finding"].map((id) => document.getElementById(id));
  const shown = document.getElementById("shown");
  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    let left = 0;
    for (const group of groups) {
      const { name, verdict: itsVerdict, finding: itsFinding } = group.dataset;
      group.hidden = !(name.toLowerCase().includes(wanted)
        && (!verdict.value || verdict.value === itsVerdict)
        && (!finding.value || finding.value === itsFinding));
      left += !group.hidden;
    }
    shown.textContent = `${left} of ${groups.length}`;
  };
  const sort = (button) => {
    const key = button.dataset.key;
    const value = (group) => group.dataset[key];
    const sorted = button.parentElement.getAttribute("aria-sort");
    const falls = isNaN(value(groups[0])) ? sorted === "ascending" : sorted !== "descending";
    const order = (a, b) => isNaN(value(a)) || isNaN(value(b)) ? value(a).localeCompare(value(b)) : value(a) - value(b);
    for (const head of table.querySelectorAll("th")) head.removeAttribute("aria-sort");
    button.parentElement.setAttribute("aria-sort", falls ? "descending" : "ascending");
    table.append(...groups.sort((a, b) => falls ? order(b, a) : order(a, b)));
  };
  for (const field of [search, verdict, finding]) field.addEventListener("input", filter);
  for (const button of table.querySelectorAll("th button")) button.addEventListener("click", () => sort(button));
  addEventListener("beforeprint", () => table.querySelectorAll("details").forEach((one) => { one.open = true; }));
  document.getElementById("controls").hidden = false;
  filter();
})();
