"use strict";
const parse = id => JSON.parse(document.getElementById(id).textContent);
const drawn = {};

/* The chart in the width that it has: panels side by side where they fit, one below the other where not. */
function fitted(spec, room) {
  const panels = spec.spec, own = (panels || spec).width || 300, columns = panels ? Math.max(1, Math.min(spec.columns || 2, Math.floor(room / (own + 70)))) : 1;
  const width = Math.max(160, Math.min(own * 1.4, Math.floor(room / columns) - 90));
  const below = {orient: "bottom", columns: room < 500 ? 2 : 4, labelLimit: 200};
  const config = {...spec.config, legend: {...(spec.config || {}).legend, ...below}};
  return panels ? {...spec, columns, spec: {...panels, width}, config} : {...spec, width, config};
}

function draw(name, spec) {
  const place = document.getElementById(`figure-${name}`);
  if (!place || typeof vegaEmbed === "undefined") return;
  drawn[name] = spec;
  const caption = place.dataset.caption;
  vegaEmbed(place, {...fitted(spec, place.clientWidth || 600), background: "transparent", description: caption}, {renderer: "svg", actions: false})
    .then(({view}) => { const svg = place.querySelector("svg"); if (svg) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", caption); } return view; })
    .catch(error => { place.textContent = `This figure cannot be drawn: ${error.message}`; });
}

for (const [name, spec] of Object.entries(parse("specs"))) draw(name, spec);

let roomBefore = document.documentElement.clientWidth;
addEventListener("resize", () => {
  const room = document.documentElement.clientWidth;
  if (Math.abs(room - roomBefore) < 40) return;
  roomBefore = room;
  for (const [name, spec] of Object.entries(drawn)) draw(name, spec);
});
