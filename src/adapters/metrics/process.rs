//! What this process uses, under the usual names of Prometheus clients. Read from `/proc` for each scrape.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use rustix::param::{clock_ticks_per_second, page_size};

#[derive(Default)]
pub(super) struct Process {
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    descriptors: Gauge,
    threads: Gauge,
    cpu_seconds: Counter<f64, AtomicU64>,
}

impl Process {
    pub(super) fn register(&self, registry: &mut Registry) {
        let all = registry.sub_registry_with_prefix("process");
        all.register("resident_memory_bytes", "Memory in use", self.resident_bytes.clone());
        all.register("virtual_memory_bytes", "Address space in use", self.virtual_bytes.clone());
        all.register("open_fds", "Open file descriptors", self.descriptors.clone());
        all.register("threads", "Threads", self.threads.clone());
        all.register("cpu_seconds", "CPU time since the start", self.cpu_seconds.clone());
    }

    /// Updates the values that can be read.
    pub(super) fn set(&self) {
        if let Ok(folder) = std::fs::read_dir("/proc/self/fd") {
            self.descriptors.set(i64::try_from(folder.count()).unwrap_or(i64::MAX));
        }
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The second field is the name in brackets and may hold anything; the third is the first after it.
        let fields: Vec<i64> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
            .unwrap_or_default();
        let Some([user, system]) = fields.get(11..13).and_then(|pair| <[i64; 2]>::try_from(pair).ok()) else { return };
        #[expect(clippy::cast_precision_loss, reason = "ticks stay far below 2^52")]
        let cpu_seconds = (user + system) as f64 / clock_ticks_per_second() as f64;
        self.cpu_seconds.inc_by((cpu_seconds - self.cpu_seconds.get()).max(0.0));
        self.threads.set(fields.get(17).copied().unwrap_or(0));
        self.virtual_bytes.set(fields.get(20).copied().unwrap_or(0));
        let pages = fields.get(21).copied().unwrap_or(0);
        self.resident_bytes.set(pages.saturating_mul(i64::try_from(page_size()).unwrap_or(0)));
    }
}
