use std::collections::BTreeMap;

/// Hosts that are counted by themselves; others are counted together.
const MOST_HOSTS: usize = 64;

/// What a sandbox was refused the way to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Connections and requests that were refused.
    pub count: u64,
    /// Those of each host, `HOST:PORT`; the first 64 hosts only.
    pub hosts: BTreeMap<String, u64>,
}

impl Refusals {
    /// Counts one; whether it is the first of a host that is counted by itself.
    pub(super) fn add(&mut self, host: String) -> bool {
        self.count = self.count.saturating_add(1);
        if self.hosts.len() >= MOST_HOSTS && !self.hosts.contains_key(&host) {
            return false;
        }
        let count = self.hosts.entry(host).or_default();
        *count = count.saturating_add(1);
        *count == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_are_counted_and_not_all_kept() {
        let mut refusals = Refusals::default();
        for number in 0..1000 {
            let is_first = refusals.add(format!("{number}.example:443"));
            assert_eq!(is_first, number < MOST_HOSTS, "{number}");
            assert!(!refusals.add("0.example:443".into()));
        }
        assert_eq!(refusals.count, 2000);
        assert_eq!(refusals.hosts.len(), MOST_HOSTS);
        assert_eq!(refusals.hosts["0.example:443"], 1001);
    }
}
