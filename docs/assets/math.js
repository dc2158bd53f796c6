// Render the formulas that pymdownx.arithmatex has marked, with the KaTeX in assets/katex.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const source = element.textContent.trim().replace(/^\\[([]|\\[)\]]$/g, "");
    katex.render(source, element, { displayMode: element.tagName === "DIV", throwOnError: false });
  }
});
