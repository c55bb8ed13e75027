//! What this process uses, under the usual names of Prometheus clients. Read from `/proc` for each scrape.

use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use rustix::param::{clock_ticks_per_second, page_size};

/// Registers the values that can be read.
pub(super) fn register(registry: &mut Registry) {
    let all = registry.sub_registry_with_prefix("process");
    let mut gauge = |name: &str, help: &str, value: i64| all.register(name, help, ConstGauge::new(value));
    if let Ok(folder) = std::fs::read_dir("/proc/self/fd") {
        gauge("open_fds", "Open file descriptors", i64::try_from(folder.count()).unwrap_or(i64::MAX));
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the name in brackets and may hold anything; the third is the first after it.
    let fields: Vec<i64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    let &[user, system, _, _, _, _, threads, _, _, virtual_bytes, pages] = fields.get(11..22).unwrap_or_default()
    else {
        return;
    };
    gauge("threads", "Threads", threads);
    gauge("virtual_memory_bytes", "Address space in use", virtual_bytes);
    let resident_bytes = pages.saturating_mul(i64::try_from(page_size()).unwrap_or(0));
    gauge("resident_memory_bytes", "Memory in use", resident_bytes);
    #[expect(clippy::cast_precision_loss, reason = "ticks stay far below 2^52")]
    let cpu_seconds = (user + system) as f64 / clock_ticks_per_second() as f64;
    all.register("cpu_seconds", "CPU time since the start", ConstCounter::new(cpu_seconds));
}
