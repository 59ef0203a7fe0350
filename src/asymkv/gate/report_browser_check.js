// Runs inside the report, in a frame of a test's page (report_test.cc): width and colour scheme are asked for by the frame.
// Writes what it finds wrong, one line each, into a <pre class="problems"> of the page around it.
const problems = [];
const need = (ok, what) => { if (!ok) problems.push(what); };
const all = (selector) => [...document.querySelectorAll(selector)];
const asked = frameElement.dataset;
need(matchMedia(`(prefers-color-scheme: ${asked.scheme})`).matches, 'colour scheme');
need(document.documentElement.lang === 'en', 'language');
need(innerWidth === +asked.width, `window is ${innerWidth} wide`);
need(document.documentElement.scrollWidth <= innerWidth, `page is ${document.documentElement.scrollWidth} wide`);
let level = 0;
for (const heading of all('h1,h2,h3,h4')) {
  const own = +heading.tagName[1];
  need(own <= level + 1, `${heading.textContent}: h${own} after h${level}`);
  level = own;
}
need(all('h1').length === 1 && all('h1,h2')[0].tagName === 'H1', 'first heading');
for (const svg of all('svg')) need(svg.getAttribute('role') === 'img' && svg.querySelector('title').textContent, 'svg title');
for (const table of all('table')) need(table.caption && table.caption.textContent, 'table caption');
for (const cell of all('th')) need(cell.scope, `scope of ${cell.textContent}`);
const ids = all('[id]').map((e) => e.id);
need(new Set(ids).size === ids.length, 'ids are not unique');
for (const link of all('nav a')) need(ids.includes(link.hash.slice(1)), link.hash);
for (const e of all('[aria-labelledby]')) {
  for (const id of e.getAttribute('aria-labelledby').split(' ')) need(ids.includes(id), `label ${id}`);
}
// Contrast of every text with what lies behind it (WCAG 2.1: 4.5 to 1).
const rgba = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const behind = (e) => {
  if (!e) return [255, 255, 255];
  const [r, g, b, a = 1] = rgba(getComputedStyle(e).backgroundColor);
  const below = a < 1 ? behind(e.parentElement) : [0, 0, 0];
  return [r, g, b].map((c, i) => a * c + (1 - a) * below[i]);
};
const luminance = (c) => c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
for (const e of all('h1,h2,h3,p,li,dt,dd,td,th,caption,small,a,code,figcaption,summary,.badge')) {
  const style = getComputedStyle(e);
  const [a, b] = [luminance(rgba(style.color)), luminance(behind(e))].sort((x, y) => y - x);
  need((a + 0.05) / (b + 0.05) >= 4.5, `contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)} of "${e.textContent.slice(0, 20)}"`);
}
const report = parent.document.createElement('pre');
report.className = 'problems';
report.textContent = [...new Set(problems)].map((words) => `${frameElement.title}: ${words}`).join('\n');
parent.document.body.append(report);
