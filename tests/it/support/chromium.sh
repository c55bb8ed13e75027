#!/bin/sh
# Chromium without what only a window needs: it starts in a quarter of the time. It opens no page by itself, and
# chromedriver waits for one.
exec chromium-headless-shell "$@" about:blank
