// The browser's storage; where it is closed to this page (private windows, strict settings), memory that lasts as
// long as the page. Nobody else needs to know which it is.

function memory() {
  const held = new Map();
  return {
    get length() { return held.size; },
    key: (at) => [...held.keys()][at] ?? null,
    getItem: (name) => held.get(name) ?? null,
    setItem: (name, text) => { held.set(name, text); },
    removeItem: (name) => { held.delete(name); },
  };
}

function open(name) {
  try {
    const storage = window[name];
    storage.getItem('');
    return storage;
  } catch {
    return memory();
  }
}

/** Lasts beyond the tab, if anything does. */
export const local = open('localStorage');
/** Lasts as long as the tab. */
export const tab = open('sessionStorage');
/** Will what is written outlive this page? */
export const lasting = () => 'clear' in local;
