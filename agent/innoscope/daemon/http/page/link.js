// The part of the page's URL after "#": the server and the selection, so that a link can be shared.

/** Return the selection in the URL, as an object of strings. */
export function wanted() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Put the selection into the URL, without a new entry in the browser's history. Empty values are omitted. */
export function remember(selection) {
  const given = Object.entries(selection).filter(([, value]) => value);
  history.replaceState(null, "", `#${new URLSearchParams(given)}`);
}
