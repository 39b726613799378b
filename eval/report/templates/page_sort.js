for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (cell) => cell.dataset.value ?? cell.textContent;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const compare = (one, other) => {
        const [a, b] = [value(one.cells[column]), value(other.cells[column])];
        return a - b || a.localeCompare(b, undefined, { numeric: true });
      };
      const rows = [...body.rows].sort(compare);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...(down ? rows.reverse() : rows));
    });
  });
}
