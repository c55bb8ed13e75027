// Sets the theme chosen earlier in this browser before the first paint. A classic script, because modules run after it.
// The rest of the theme is in theme.js.
try {
  const theme = localStorage.getItem("sandbox.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is disabled: the page follows the system.
}
