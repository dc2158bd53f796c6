// Render the formulas that pymdownx.arithmatex has marked, with KaTeX 0.19.1 (assets/katex, without the fonts of old browsers).
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const source = element.textContent.trim().replace(/^\\[([]|\\[)\]]$/g, "");
    katex.render(source, element, { displayMode: element.tagName === "DIV", throwOnError: false });
  }
});
