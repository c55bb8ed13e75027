#!/opt/venv/bin/python3
"""Answers, in words, a program that wants a module which this image does not have.

`after` runs after a program or a cell that failed, when its traceback has been printed. This file is also the command
`pip` and the module `pip`. Imported only then, and by the kernel of sessions.
"""

import re
import sys

_LIST = "/opt/runner/requirements.in"
# What programs import that is not here, and what is here for the same purpose.
_INSTEAD = {
    "fitz": "pypdf, pdfplumber", "PyPDF2": "pypdf", "pymupdf": "pypdf, pdfplumber", "camelot": "pdfplumber",
    "fpdf": "reportlab", "weasyprint": "reportlab, or the command pandoc", "docx2txt": "docx", "xlrd": "openpyxl",
    "pytesseract": "the command tesseract", "pdf2image": "the command pdftoppm", "moviepy": "the command ffmpeg",
    "skimage": "cv2, scipy.ndimage", "torch": "sklearn", "tensorflow": "sklearn", "keras": "sklearn",
    "xgboost": "sklearn.ensemble", "lightgbm": "sklearn.ensemble", "bokeh": "plotly", "altair": "plotly",
    "aiohttp": "httpx", "ujson": "json", "toml": "tomllib", "yaml": "PyYAML",
}  # fmt: skip

_OTHER_NAMES = {"opencv-python": "opencv-python-headless", "sklearn": "scikit-learn", "bs4": "beautifulsoup4"}


def _names():
    with open(_LIST) as lines:
        return [re.split(r"[<>=]", line.strip())[0] for line in lines if line.strip() and line[0] != "#"]


def _say(what):
    import sandbox_packages

    if sandbox_packages.is_offered():
        print(f"Hint: {what}. `pip install` installs packages.", file=sys.stderr)
        return
    print(
        f"Hint: {what}. Installed beside the standard library: {', '.join(_names())}. There is no pip, because programs"
        " have no network. A pure Python module can be used when its file or folder (a wheel, unzipped) is in /data;"
        " anything else is added by the operator, to the image.",
        file=sys.stderr,
    )


def after(error):
    """Tells how to go on after an uncaught error that a notebook or a machine with pip would not have had."""
    if isinstance(error, ImportError) and isinstance(error.__context__, ModuleNotFoundError):
        error = error.__context__  # pandas: "Missing optional dependency"
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        if top not in sys.modules:
            instead = _INSTEAD.get(top)
            _say(f"{top} is not installed" + (f"; what is here instead: {instead}" if instead else ""))
    elif isinstance(error, SyntaxError) and [error.filename] == sys.argv[:1]:  # a program may have emptied it
        line = (error.text or "").strip()
        if re.match(r"[!%]\s*(pip|conda)\b", line):
            _say("lines that begin with ! or % belong to notebooks")
        elif line.startswith(("!", "%")):
            print(
                "Hint: lines that begin with ! or % belong to notebooks. Run a command with"
                " subprocess.run([...], check=True).",
                file=sys.stderr,
            )


# Options of `pip install` that change nothing here.
_WITHOUT_EFFECT = {
    "-U", "--upgrade", "-q", "-qq", "--quiet", "-v", "--verbose", "--user", "--no-cache-dir", "--no-input",
    "--disable-pip-version-check", "--break-system-packages", "--prefer-binary", "--no-warn-script-location",
    "--root-user-action=ignore", "--progress-bar=off", "--only-binary=:all:",
}  # fmt: skip


def _lines(file):
    with open(file, encoding="utf-8-sig") as lines:
        texts = [re.split(r"(?:^|\s)#", line)[0].strip() for line in lines]
    return [text for text in texts if text]


def _install(arguments):
    """Installs what `pip install` names, by the server."""
    import sandbox_packages

    wanted, words = [], iter(arguments)
    for word in words:
        name, _, value = word.partition("=")
        if name in ("-r", "--requirement"):
            try:
                wanted += _lines(value or next(words, ""))
            except (OSError, ValueError) as error:
                print(f"ERROR: {error}", file=sys.stderr)
                return 1
        elif word.startswith("-") and word not in _WITHOUT_EFFECT:
            print(f"ERROR: the option {name} is not supported here; the operator chooses the index.", file=sys.stderr)
            return 1
        elif not word.startswith("-"):
            wanted.append(_OTHER_NAMES.get(word, word))
    if not wanted:
        print("ERROR: give the names of packages to install.", file=sys.stderr)
        return 1
    return sandbox_packages.install(wanted)


def main(arguments):
    """pip, as far as it makes sense here: `list`, `freeze`, and `install`."""
    from importlib import metadata

    words = [word for word in arguments if not word.startswith("-")]
    if words[:1] == ["install"]:
        import sandbox_packages

        if sandbox_packages.is_offered():
            return _install(arguments[arguments.index("install") + 1 :])
    if words and words[0] in ("list", "freeze"):
        for found in sorted(metadata.distributions(), key=lambda found: found.name.lower()):
            print(f"{found.name}=={found.version}")
        return 0
    missing = []
    for wanted in words[1:] if words[:1] == ["install"] else ():
        name = re.split(r"[\[<>=!~; ]", wanted)[0]
        try:
            have = metadata.version(_OTHER_NAMES.get(name, name))
            print(f"Requirement already satisfied: {wanted} ({have})")
        except (metadata.PackageNotFoundError, ValueError):
            missing.append(name)
    if words[:1] == ["install"] and len(words) > 1 and not missing:
        return 0
    _say(f"pip cannot install {', '.join(missing)}" if missing else "pip is not available")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
