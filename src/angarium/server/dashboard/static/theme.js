// Runs before the first paint, so that a chosen theme does not flash in the other one first.
const chosen = localStorage.getItem("angarium.theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
