// The page of `inkmill serve`: one document at a time, boxes over the picture and text beside it.
// What was read is untrusted: it is only ever set as text.
"use strict";

const SURE = 0.85;
const SUFFIXES = { text: "txt", json: "json", hocr: "html", alto: "xml", page: "xml", tsv: "tsv", pdf: "pdf", picture: "svg" };
const ONE_PAGE = new Set(["page", "picture"]); // files of these formats hold the page that is shown
const $ = (id) => document.getElementById(id);
const state = { file: null, pages: [], shown: 0, pictures: new Map(), asked: 0, most: Infinity };

function say(message, error = false) {
  $("status").textContent = message;
  $("status").classList.toggle("error", error);
}

function address(format, page) {
  const query = new URLSearchParams({ format });
  if ($("model").value) query.set("model", $("model").value);
  if (page) query.set("page", page);
  return `v1/read?${query}`;
}

function headers() {
  const token = $("token").value;
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// 1. The document goes to the server; an error comes back in words.
async function ask(where, file) {
  if (file.size > state.most) { // a server that refuses so much closes the connection before its answer is read
    const mib = (bytes) => (bytes / 2 ** 20).toFixed(1);
    throw new Error(`The file has ${mib(file.size)} MiB; this server takes at most ${mib(state.most)} MiB.`);
  }
  const form = new FormData();
  form.append("files", file, file.name || "picture");
  let answer;
  try {
    answer = await fetch(where, { method: "POST", body: form, headers: headers() });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) $("token-label").hidden = false;
  let problem = null;
  try { problem = await answer.json(); } catch { /* no problem+json: a proxy's page perhaps */ }
  const wait = answer.headers.get("Retry-After");
  const again = wait ? ` Try again in ${wait} s.` : "";
  throw new Error(`${problem ? problem.detail : `The server answered ${answer.status}`}.${again}`);
}

async function read(file) {
  if (!file) return;
  const turn = ++state.asked; // what was asked for before is no longer of interest
  say(`Reading ${file.name || "the picture"} …`);
  $("result").hidden = true;
  const began = performance.now();
  try {
    const { pages } = await (await ask(address("json"), file)).json();
    if (turn !== state.asked) return;
    Object.assign(state, { file, pages, shown: 0, pictures: new Map() });
    const lines = pages.reduce((sum, page) => sum + page.lines.length, 0);
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    const many = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
    say(lines ? `${many(lines, "line")} on ${many(pages.length, "page")}, ${seconds} s` : `No text was found, ${seconds} s`);
    show();
  } catch (error) {
    if (turn === state.asked) say(error.message, true);
  }
}

// The browser shows a picture itself; a page of a PDF, a TIFF or another file comes from the server.
async function pictureOf(number) {
  if (state.pages.length === 1) {
    try {
      return await createImageBitmap(state.file, { imageOrientation: "from-image" });
    } catch { /* no kind that this browser knows */ }
  }
  return createImageBitmap(await (await ask(`v1/picture?page=${state.pages[number].number}`, state.file)).blob());
}

async function drawPicture(number) {
  const { pictures } = state;
  if (!pictures.has(number)) pictures.set(number, pictureOf(number));
  try {
    const picture = await pictures.get(number);
    if (pictures !== state.pictures || number !== state.shown) return;
    const canvas = $("canvas");
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.dataset.drawn = number + 1;
  } catch (error) {
    pictures.delete(number);
    if (pictures === state.pictures) say(`The page's picture cannot be shown. ${error.message}`, true);
  }
}

// 2. A page: picture, boxes and lines, which mark one another.
function show() {
  const page = state.pages[state.shown];
  const canvas = $("canvas");
  canvas.width = page.width;
  canvas.height = page.height;
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white";
  pen.fillRect(0, 0, page.width, page.height);
  canvas.dataset.drawn = "";
  drawPicture(state.shown);
  const boxes = $("boxes");
  boxes.setAttribute("viewBox", `0 0 ${page.width} ${page.height}`);
  boxes.replaceChildren(...page.lines.map(box));
  $("text").replaceChildren(...page.lines.map(row));
  $("notes").replaceChildren(...page.notes.map((note) => element("li", note)));
  $("page-number").textContent = `${state.shown + 1} of ${state.pages.length}`;
  $("pages").hidden = state.pages.length < 2;
  $("before").disabled = state.shown === 0;
  $("after").disabled = state.shown === state.pages.length - 1;
  $("result").hidden = false;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function box(line, number) {
  const polygon = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
  polygon.setAttribute("points", line.polygon.map((point) => point.join(",")).join(" "));
  polygon.classList.toggle("unsure", line.confidence < SURE);
  linked(polygon, number);
  polygon.addEventListener("click", () => $("text").children[number].focus());
  return polygon;
}

function row(line, number, lines) {
  const item = document.createElement("li");
  item.tabIndex = 0;
  item.append(element("span", line.text), element("small", `${Math.round(100 * line.confidence)} %`));
  item.classList.toggle("unsure", line.confidence < SURE);
  item.classList.toggle("new-block", number > 0 && lines[number - 1].block !== line.block);
  linked(item, number);
  item.addEventListener("focus", () => mark(number, true));
  item.addEventListener("blur", () => mark(number, false));
  return item;
}

function linked(one, number) {
  one.addEventListener("mouseenter", () => mark(number, true));
  one.addEventListener("mouseleave", () => mark(number, false));
}

function mark(number, on) {
  $("boxes").children[number]?.classList.toggle("marked", on);
  $("text").children[number]?.classList.toggle("marked", on);
}

// 3. Out again: the clipboard, and every format that the server writes.
function textOf(page) {
  return page.lines.map((line, number) => {
    const before = page.lines[number - 1];
    if (!before) return line.text;
    const same = before.block === line.block;
    return (same && before.row === line.row ? " " : same ? "\n" : "\n\n") + line.text;
  }).join("");
}

async function copy() {
  const text = state.pages.map(textOf).join("\n\n");
  try {
    await navigator.clipboard.writeText(text);
    say("The text is copied.");
  } catch {
    const area = element("textarea", text);
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    say(done ? "The text is copied." : "This browser does not allow copying; save it as text instead.", !done);
  }
}

async function save() {
  const format = $("format").value;
  const page = ONE_PAGE.has(format) ? state.shown + 1 : null;
  try {
    const content = await (await ask(address(format, page), state.file)).blob();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content);
    link.download = `${(state.file.name || "picture").replace(/\.[^.]*$/, "")}.${SUFFIXES[format] || format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    say(`Saved as ${link.download}.`);
  } catch (error) {
    say(error.message, true);
  }
}

// 4. Ways in: choose, drop, paste, photograph.
function turn(step) {
  state.shown = Math.min(Math.max(state.shown + step, 0), state.pages.length - 1);
  show();
}

for (const id of ["file", "camera"]) {
  $(id).addEventListener("change", (event) => { read(event.target.files[0]); event.target.value = ""; });
}
for (const id of ["drop", "camera-label"]) {
  $(id).addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); $(id).querySelector("input").click(); }
  });
}
document.addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
document.addEventListener("dragleave", () => $("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  read(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => read(event.clipboardData.files[0]));
$("copy").addEventListener("click", copy);
$("save").addEventListener("click", save);
$("before").addEventListener("click", () => turn(-1));
$("after").addEventListener("click", () => turn(1));

// 5. What this server offers.
async function offer() {
  try {
    const description = await (await fetch("openapi.json", { headers: headers() })).json();
    const parameters = description.paths["/v1/read"].post.parameters;
    const formats = parameters.find((one) => one.name === "format").schema.enum;
    $("format").replaceChildren(...formats.map((name) => element("option", name)));
    const { models, most } = await (await fetch("v1/models", { headers: headers() })).json();
    state.most = most.bytes;
    $("model").replaceChildren(...models.map((name) => element("option", name)));
    $("model-label").hidden = models.length < 2;
  } catch {
    $("token-label").hidden = false; // the server asks for a token
  }
}
$("token").addEventListener("change", offer);
offer();
