//! What a value may be: secrets that are secret, addresses that are addresses, numbers within their range.

use std::path::PathBuf;

use super::{BindAddr, Config, ConfigError, Secret, load::Raw};

/// Longest life of a link, in seconds: seven days, as for signed links elsewhere (AWS Signature Version 4).
pub const URL_TTL_S_MAX: u64 = 7 * 86_400;

impl Raw {
    /// The settings with their rules held.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub(super) fn check(self) -> Result<Config, ConfigError> {
        let api_token = Secret::parse("MCP_API_TOKEN", &self.mcp_api_token)?;
        let file_secrets: Vec<Secret> = self
            .file_secret
            .split(',')
            .map(|text| Secret::parse("FILE_SECRET", text.trim()))
            .collect::<Result<_, _>>()?;
        if file_secrets.iter().any(|secret| secret.is_same(&api_token)) {
            return Err(ConfigError(
                "FILE_SECRET is the same text as MCP_API_TOKEN: make another with `openssl rand -hex 32`, so that \
                 one can be changed without the other."
                    .to_owned(),
            ));
        }
        let root = PathBuf::from(&self.sandbox_root);
        if !root.is_absolute() || root == std::path::Path::new("/") {
            return Err(ConfigError("SANDBOX_ROOT must be an absolute path of a folder of its own.".to_owned()));
        }
        let config = Config {
            api_token,
            file_secrets,
            root,
            public_base_url: base_url(&self.public_base_url)?,
            http_addr: BindAddr::parse(&self.mcp_http_addr)?,
            docker_host: (!self.docker_host.is_empty()).then_some(self.docker_host),
            server: self.server,
            limits: self.limits,
            engine: self.engine,
            admission: self.admission,
            standby: self.standby,
            runs: self.runs,
            files: self.files,
            quota: self.quota,
            metrics: self.metrics,
            audit: self.audit,
            traces: self.traces,
            log: self.log,
        };
        config.check_ranges()?;
        Ok(config)
    }
}

fn base_url(text: &str) -> Result<http::Uri, ConfigError> {
    let error = || {
        ConfigError(
            "PUBLIC_BASE_URL must be an address such as https://sandbox.example.com, without query or fragment."
                .to_owned(),
        )
    };
    let uri: http::Uri = text.trim_end_matches('/').parse().map_err(|_| error())?;
    let http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !http || uri.host().is_none_or(str::is_empty) || uri.query().is_some() || text.contains(['#', '@']) {
        return Err(error());
    }
    Ok(uri)
}

impl Config {
    fn check_ranges(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let within = [
            ("SANDBOX_LIMITS__CPU_MILLIS", u64::from(limits.cpu_millis), 10, 1_000_000),
            ("SANDBOX_LIMITS__MEMORY_BYTES", limits.memory_bytes, 16 << 20, 1 << 50),
            ("SANDBOX_LIMITS__WALL_MS", limits.wall_ms, 100, 24 * 3_600_000),
            ("SANDBOX_LIMITS__PROCESSES_MAX", limits.processes_max.into(), 8, 1 << 22),
            ("SANDBOX_LIMITS__OPEN_FILES_MAX", limits.open_files_max.into(), 32, 1 << 20),
            ("SANDBOX_LIMITS__FILE_BYTES_MAX", limits.file_bytes_max, 1, 1 << 50),
            ("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", limits.output_bytes_max, 1024, 1 << 40),
            ("SANDBOX_LIMITS__OUTPUT_KEPT_BYTES", limits.output_kept_bytes, 1024, 64 << 20),
            ("SANDBOX_LIMITS__TMP_BYTES", limits.tmp_bytes, 1 << 20, 1 << 40),
            ("SANDBOX_LIMITS__PROGRAM_BYTES_MAX", limits.program_bytes_max, 1, 64 << 20),
            ("SANDBOX_SERVER__BODY_BYTES_MAX", self.server.body_bytes_max, 4096, 256 << 20),
            ("SANDBOX_SERVER__BODIES_BYTES_MAX", self.server.bodies_bytes_max, 4096, 1 << 40),
            ("SANDBOX_SERVER__HEADER_READ_MS", self.server.header_read_ms, 100, 600_000),
            ("SANDBOX_SERVER__BODY_READ_MS", self.server.body_read_ms, 100, 3_600_000),
            ("SANDBOX_SERVER__CONNECTIONS_MAX", self.server.connections_max.into(), 1, 1 << 20),
            ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", self.server.shutdown_grace_ms, 0, 3_600_000),
            ("SANDBOX_ADMISSION__SLOTS", self.admission.slots.into(), 0, 10_000),
            ("SANDBOX_ADMISSION__QUEUE_MAX", self.admission.queue_max.into(), 0, 1 << 20),
            ("SANDBOX_ADMISSION__QUEUE_WAIT_MS", self.admission.queue_wait_ms, 0, 3_600_000),
            ("SANDBOX_ADMISSION__CONVERSATION_MAX", self.admission.conversation_max.into(), 1, 1 << 20),
            ("SANDBOX_ADMISSION__RATE_PER_MINUTE", self.admission.rate_per_minute.into(), 0, 60_000_000),
            ("SANDBOX_ADMISSION__RATE_BURST", self.admission.rate_burst.into(), 1, 60_000_000),
            ("SANDBOX_STANDBY__TOTAL_MAX", self.standby.total_max.into(), 0, 1000),
            ("SANDBOX_STANDBY__NAMELESS_MAX", self.standby.nameless_max.into(), 0, 1000),
            ("SANDBOX_STANDBY__IDLE_S", self.standby.idle_s, 1, 86_400),
            ("SANDBOX_STANDBY__USED_S", self.standby.used_s, 1, 365 * 86_400),
            ("SANDBOX_STANDBY__AGE_S", self.standby.age_s, 10, 7 * 86_400),
            ("SANDBOX_RUNS__KEPT_MAX", self.runs.kept_max.into(), 1, 100_000),
            ("SANDBOX_RUNS__KEPT_BYTES", self.runs.kept_bytes, 1, 1 << 40),
            ("SANDBOX_RUNS__KEPT_AGE_S", self.runs.kept_age_s, 1, 30 * 86_400),
            ("SANDBOX_RUNS__WAIT_S_DEFAULT", self.runs.wait_s_default, 0, 3_600),
            ("SANDBOX_FILES__URL_TTL_S", self.files.url_ttl_s, 1, URL_TTL_S_MAX),
            ("SANDBOX_FILES__LISTED_MAX", self.files.listed_max.into(), 1, 10_000),
            ("SANDBOX_FILES__DEPTH_MAX", self.files.depth_max.into(), 1, 32),
            ("SANDBOX_FILES__READ_BYTES_MAX", self.files.read_bytes_max, 1, 64 << 20),
            ("SANDBOX_FILES__WRITE_BYTES_MAX", self.files.write_bytes_max, 1, 256 << 20),
            ("SANDBOX_FILES__IMAGE_BYTES_MAX", self.files.image_bytes_max, 0, 16 << 20),
            ("SANDBOX_FILES__IMAGES_MAX", self.files.images_max.into(), 0, 64),
            ("SANDBOX_QUOTA__BYTES_MAX", self.quota.bytes_max, 1 << 20, 1 << 50),
            ("SANDBOX_QUOTA__ENTRIES_MAX", self.quota.entries_max.into(), 10, 10_000_000),
            ("SANDBOX_QUOTA__FREE_BYTES_MIN", self.quota.free_bytes_min, 0, 1 << 50),
            ("SANDBOX_QUOTA__TOTAL_BYTES_MAX", self.quota.total_bytes_max, 0, 1 << 60),
            ("SANDBOX_QUOTA__KEPT_UNUSED_S", self.quota.kept_unused_s, 0, 100 * 365 * 86_400),
            ("SANDBOX_ENGINE__RUNNER_UID", self.engine.runner_uid.into(), 1, u64::from(u32::MAX - 1)),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return Err(ConfigError(format!("{name} is {value}: it must be from {low} to {high}.")));
            }
        }
        if !matches!(self.runs.on_disconnect.as_str(), "cancel" | "detach") {
            return Err(ConfigError("SANDBOX_RUNS__ON_DISCONNECT must be `cancel` or `detach`.".to_owned()));
        }
        if !matches!(self.log.format.as_str(), "text" | "json") {
            return Err(ConfigError("SANDBOX_LOG__FORMAT must be `text` or `json`.".to_owned()));
        }
        self.check_operations()
    }

    fn check_operations(&self) -> Result<(), ConfigError> {
        if !self.metrics.http_addr.is_empty() && self.metrics.addr().is_none() {
            return Err(ConfigError(
                "SANDBOX_METRICS__HTTP_ADDR must be an address such as 127.0.0.1:9090.".to_owned(),
            ));
        }
        self.traces.collector()?;
        let audit = std::path::Path::new(&self.audit.file);
        // Whatever is in the root may be taken for a conversation, or be deleted with one.
        if !self.audit.file.is_empty() && (!audit.is_absolute() || audit.starts_with(&self.root)) {
            return Err(ConfigError(
                "SANDBOX_AUDIT__FILE must be an absolute path of a file that is not below SANDBOX_ROOT.".to_owned(),
            ));
        }
        Ok(())
    }
}
