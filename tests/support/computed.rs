//! How long a thread has computed, for tests that bound the time of a function on a busy machine.

use std::fs;

/// The time that this thread has computed, in hundredths of a second: others on the machine do not count.
pub(crate) fn computed() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum()
}
