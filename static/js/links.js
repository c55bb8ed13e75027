// Owns how a file's signed URL becomes a link of this page. The URL names the server as others reach it; the page may be
// open under another name, so only path and query are used, on the page's own origin and below the page's own path.

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** The address of a file for this page, or null when the server gave none that looks right. */
export function fileHref(file) {
  if (typeof file.url !== "string") return null;
  let url;
  try {
    url = new URL(file.url, document.baseURI);
  } catch {
    return null;
  }
  const start = url.pathname.indexOf("/files/");
  if (start < 0) return null;
  return new URL(`.${url.pathname.slice(start)}${url.search}`, document.baseURI).href;
}

export function isExpired(file, now = Date.now()) {
  const end = Date.parse(file.urlExpiresAt);
  return Number.isFinite(end) && end <= now;
}

/** Whether the page shows the file as an image. */
export function isPicture(file) {
  return PICTURES.has(file.mediaType);
}
