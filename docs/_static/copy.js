// A button on each block of code copies it: of a console session the commands alone, without their prompts and comments.
addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy-code";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(textOf(block));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
});

function textOf(block) {
  const text = block.querySelector("pre").textContent;
  if (!block.parentElement.classList.contains("highlight-console")) return text;
  const commands = text.split("\n").filter(line => line.startsWith("$ "));
  return commands.map(line => line.slice(2).replace(/\s+# .*$/, "") + "\n").join("");
}
