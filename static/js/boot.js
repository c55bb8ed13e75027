// Owns one thing: the theme chosen earlier in this tab is set before the first paint. A classic script, because modules
// run after it. Everything else about themes is in theme.js.
try {
  const theme = sessionStorage.getItem("sandbox.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the page follows the system.
}
