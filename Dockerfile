# The server's image: one static binary on an empty root.
#
# Where the context holds dist/mcp-sandbox-server (build.sh makes it where cargo is installed), that binary is taken
# and nothing is compiled; RUST_BASE may then be any Debian image that is at hand. Works with BuildKit and without.
ARG RUST_BASE=rust:1.95-slim-bookworm

FROM ${RUST_BASE} AS build
WORKDIR /src
COPY . .
RUN set -eu; \
    mkdir -p /out; \
    if [ -f dist/mcp-sandbox-server ]; then \
      cp dist/mcp-sandbox-server /out/; \
    else \
      target=$(rustc -vV | sed -n 's/^host: //p'); \
      RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked \
        --bin mcp-sandbox-server --target "$target"; \
      cp "target/$target/release/mcp-sandbox-server" /out/; \
    fi; \
    chmod 0755 /out/mcp-sandbox-server; \
    /out/mcp-sandbox-server --version

FROM scratch
LABEL org.opencontainers.image.title="mcp-sandbox-server" \
      org.opencontainers.image.description="A self-hosted code sandbox for AI assistants." \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /out/mcp-sandbox-server /mcp-sandbox-server
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 CMD ["/mcp-sandbox-server", "health"]
ENTRYPOINT ["/mcp-sandbox-server"]
CMD ["serve"]
