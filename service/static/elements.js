"use strict";
// What all parts of the page use. Text of documents enters the page through textContent and append alone, so nothing in
// it can become markup.
const byId = (id) => document.getElementById(id);
const KEY = "lightretriever-key";

function make(tag, className = "", ...parts) {
  const element = Object.assign(document.createElement(tag), { className });
  element.append(...parts);
  return element;
}

function makeButton(className, click, ...parts) {
  const button = Object.assign(make("button", className, ...parts), { type: "button" });
  button.addEventListener("click", click);
  return button;
}

function makeLink(href, text) {
  return Object.assign(make("a", "", text), { href });
}

// What only screen readers tell.
function hidden(text) {
  return make("span", "hidden", text);
}

function say(text, bad = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", bad);
}

function number(value) {
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(3);
}

function count(value) {
  return value.toLocaleString("en");
}

function show(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// A field's name for people: "last_change" is "Last change".
function label(name) {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// The text with its marks, whose places count Unicode characters.
function marked(element, text, marks) {
  const characters = Array.from(text);
  let place = 0;
  for (const [from, to] of marks) {
    element.append(characters.slice(place, from).join(""), make("mark", "", characters.slice(from, to).join("")));
    place = to;
  }
  element.append(characters.slice(place).join(""));
}

// The part of a bar that a share of it fills.
function fill(share, leg) {
  const part = make("span", leg);
  part.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return part;
}

// What a person is told when something went wrong, and whether it may go better another time.
class Trouble extends Error {
  constructor(message, { again = false, locked = false, refused = false }) {
    super(message);
    Object.assign(this, { again, locked, refused });
  }
}

// Says what went wrong, and asks for a key where one is needed. What is no Trouble is a mistake in the page.
function tell(error) {
  if (!(error instanceof Trouble)) throw error;
  byId("access").hidden = !error.locked;
  say(error.message, true);
}

// Asks the service: GET without a body, POST with one. Throws Trouble, and an AbortError when the signal came.
async function call(path, body, signal) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...(body && { "content-type": "application/json" }) };
  let response, answer;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch {
    signal?.throwIfAborted();
    throw new Trouble("The service can't be reached.", { again: true });
  }
  try {
    answer = await response.json();
  } catch {
    answer = null;
  }
  signal?.throwIfAborted();
  if (response.ok && answer) return answer;
  const { status } = response;
  throw new Trouble(answer?.detail || `The service's answer can't be read (status ${status}).`, {
    again: status === 429 || status >= 500 || response.ok,
    refused: status === 422,
    locked: status === 401 || status === 403,
  });
}
