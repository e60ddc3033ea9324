// Sets the colours before the first paint: a module would run too late and flash. Everything else is a module.
(() => {
  const NAMES = ['system', 'light', 'dark'];
  const KEY = 'chimere.theme';
  const read = () => {
    try {
      const name = localStorage.getItem(KEY);
      return NAMES.includes(name) ? name : 'system';
    } catch {
      return 'system';
    }
  };
  const apply = (name) => {
    if (name === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
  };
  apply(read());
  window.chimereTheme = {
    name: read,
    next() {
      const name = NAMES[(NAMES.indexOf(read()) + 1) % NAMES.length];
      try {
        localStorage.setItem(KEY, name);
      } catch {
        // Without storage the choice lasts as long as the page.
      }
      apply(name);
      return name;
    },
  };
})();
