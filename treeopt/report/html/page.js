"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = (text, label, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };

  const theme = button("", "Switch between light and dark", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.id = "theme";
  name();
  dark.addEventListener("change", name);
  document.querySelector("nav").append(theme);

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  for (const title of document.querySelectorAll("figure svg title")) {
    title.parentElement.setAttribute("aria-label", title.textContent);
    title.parentElement.dataset.tip = title.textContent;
    title.remove();
  }
  const show = (event) => {
    const above = event.target.closest?.("[data-tip]");
    tip.hidden = !above;
    if (!above) return;
    tip.textContent = above.dataset.tip;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 10) : event.clientY + 18}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);

  for (const frame of document.querySelectorAll(".zoomed .frame")) {
    const svg = frame.querySelector("svg");
    const own = svg.viewBox.baseVal.width;
    let scale = svg.getBoundingClientRect().width / own;
    const zoom = (wanted) => {
      const middle = (frame.scrollLeft + frame.clientWidth / 2) / scale;
      const height = (frame.scrollTop + frame.clientHeight / 2) / scale;
      scale = Math.min(8, Math.max(0.05, wanted));
      svg.style.width = `${own * scale}px`;
      svg.style.height = "auto";
      svg.style.maxWidth = "none";
      frame.scrollLeft = middle * scale - frame.clientWidth / 2;
      frame.scrollTop = height * scale - frame.clientHeight / 2;
    };
    const tools = document.createElement("div");
    tools.className = "tools";
    tools.append(
      button("+", "Larger", () => zoom(scale * 1.4)),
      button("−", "Smaller", () => zoom(scale / 1.4)),
      button("Fit", "Fit into the frame", () => zoom(frame.clientWidth / own)),
      button("1:1", "Own size", () => zoom(1)),
    );
    frame.before(tools);
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(scale * Math.exp(-event.deltaY / 300));
    }, { passive: false });
  }

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of closed) each.open = false; });
})();
