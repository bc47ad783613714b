//! What this process has used.

use std::io;
use std::time::Duration;

/// The CPU time this process has used, in user mode and in the kernel.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// How long this thread has waited for a processor that others had; zero where that is not told.
pub fn cpu_wait() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(told.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

/// How much memory of this process is resident.
///
/// # Errors
///
/// Where there is no `/proc`.
pub fn resident_bytes() -> io::Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm is not as it should be"))?;
    Ok(pages * rustix::param::page_size())
}
