// Dialogs: a change is confirmed with what will happen, and what came of it is said.
import { call, Refused } from "./api.js";
import { el, fill, many, number } from "./dom.js";

const said = document.getElementById("said");
let until;

export function say(text, bad = false) {
  fill(said, text);
  said.className = bad ? "bad" : "good";
  clearTimeout(until);
  until = setTimeout(() => fill(said), 8000);
}

// Opens a dialog with a title, words on what will happen, and fields. Returns the values, or null.
function ask(dialog, title, words, fields, go) {
  return new Promise((done) => {
    const form = el(
      "form",
      { method: "dialog" },
      el("h2", { id: `${dialog.id}-title` }, title),
      ...words.map((each) => el("p", {}, each)),
      ...fields.map(([name, label, attributes]) => el("label", {}, label, el("input", { name, ...attributes }))),
      el(
        "div",
        { class: "buttons" },
        el("button", { value: "", type: "button", onclick: () => dialog.close("") }, "Back"),
        el("button", { value: "go", class: "main" }, go),
      ),
    );
    fill(dialog, form);
    dialog.returnValue = "";
    dialog.onclose = () => done(dialog.returnValue === "go" ? Object.fromEntries(new FormData(form)) : null);
    dialog.showModal();
  });
}

export function askForToken(again) {
  const words = [again ? "The server rejected the token." : "This server requires a token.", "The token is kept only in this tab."];
  const fields = [["token", "Token", { type: "password", required: true, autocomplete: "off" }]];
  return ask(document.getElementById("token"), "Token", words, fields, "Continue").then((values) => values?.token ?? null);
}

// A button that changes rows one after another with call(row), and says how far it is. what: { name, title, words, after }
export function changeEach(thing, rows, call, what) {
  return change({
    ...what,
    name: `${what.name} ${number(rows.length)}`,
    act: async () => {
      let done = 0;
      let refused = null;
      for (const [nth, row] of rows.entries()) {
        try {
          await call(row);
          done += 1;
        } catch (error) {
          refused = error.message;
        }
        if ((nth + 1) % 10 === 0) say(`${number(done)} of ${many(rows.length, thing)} done so far`);
      }
      return `${number(done)} of ${many(rows.length, thing)} done${refused ? `; the others were refused: ${refused}` : ""}`;
    },
  });
}

// A button for a change. what: { name, title, words, fields, method, path, body: (values) => body, done: (reply) => text }
// words: texts, or a function that asks for them. act(values) instead of method, path and done: does it, returns a text.
export function change(what) {
  return el(
    "button",
    {
      class: "change",
      onclick: async () => {
        try {
          const words = typeof what.words === "function" ? await what.words() : what.words;
          const values = await ask(document.getElementById("confirm"), what.title, words, what.fields ?? [], what.name);
          if (values === null) return;
          if (what.act) say(await what.act(values));
          else {
            const reply = await call(what.method ?? "POST", what.path, what.body?.(values));
            say(what.done?.(reply) ?? `${what.title}: done`);
          }
        } catch (error) {
          say(error instanceof Refused ? error.message : `${what.title}: ${error.message}`, true);
        }
        what.after?.();
      },
    },
    what.name,
  );
}
