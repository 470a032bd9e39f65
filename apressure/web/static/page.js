// Keeps a page current: loads it again when the server says that there is something new.
"use strict";
(() => {
  const events = document.body.dataset.events;
  const status = document.getElementById("connection");
  if (!events || !status) return;
  let loading = false, pressed = false, source = null, timer = null;

  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  const selected = () => {
    const selection = window.getSelection();
    return selection && !selection.isCollapsed;
  };

  // What somebody has marked stays marked: the page is not loaded again before they have done something with it.
  const chosen = () => document.querySelector("#live input:checked") !== null;

  // What somebody has unfolded stays so, also where a page between has no such part: the server has just started.
  const unfolded = new Set([...document.querySelectorAll("#live details[open]")].map((one) => one.id));
  document.addEventListener("toggle", (event) => {
    if (event.target.open) unfolded.add(event.target.id); else unfolded.delete(event.target.id);
  }, true);

  // What tells an element of the old page from the others, so that it is found in the new one.
  const pathOf = (element) => {
    const path = [];
    const live = document.getElementById("live");
    for (let one = element; one && one !== live; one = one.parentElement) {
      path.unshift([...one.parentElement.children].indexOf(one));
    }
    return path;
  };

  const show = (fresh) => {
    const live = document.getElementById("live");
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const href = focused && focused.getAttribute("href");
    const path = focused && pathOf(focused);
    const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    live.replaceWith(fresh);
    fresh.querySelectorAll("details").forEach((one) => { one.open = unfolded.has(one.id); });
    fresh.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
    if (!focused) return;
    const same = href !== null && [...fresh.querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === href);
    const target = same || path.reduce((one, index) => one && one.children[index], fresh);
    if (target) target.focus({preventScroll: true});
  };

  // A new page would take from somebody's hands what he does with this one.
  const busy = () => pressed || selected() || chosen();

  const load = async () => {
    if (loading || document.hidden || busy()) return;
    loading = true;
    try {
      const answer = await fetch(location.href, {cache: "no-store", credentials: "same-origin", headers: {Accept: "text/html"}});
      if (answer.redirected) { location.reload(); return; } // sign in again
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("live");
      if (fresh && !busy()) show(fresh); // the answer took a while
      say("live");
    } catch (error) {
      say("not connected; trying again");
    } finally {
      loading = false;
    }
  };

  const connect = () => {
    timer = null;
    source = new EventSource(events);
    source.addEventListener("open", load);
    source.addEventListener("look", load);
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) { load(); return; } // the browser tries again by itself
      load();
      if (timer === null) timer = setTimeout(connect, 3000);
    };
  };
  // What is pressed has to be there when it is released: otherwise the click is lost.
  document.addEventListener("pointerdown", () => { pressed = true; });
  for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { pressed = false; });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("input[data-all]")) return;
    for (const one of event.target.closest("table").querySelectorAll("input[name]")) one.checked = event.target.checked;
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
  window.addEventListener("pagehide", () => { if (source) source.close(); });
  connect();
})();
