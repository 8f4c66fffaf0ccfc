//! A cache of bounded size whose entries expire.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Cache<K, V> {
    entries: HashMap<K, (V, Instant)>,
    capacity: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity }
    }

    /// A value that has not expired.
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.entries.get(key).filter(|(_, expires)| now < *expires).map(|(value, _)| value.clone())
    }

    /// Keeps a value for a time. In a full cache it replaces the value that would expire next.
    pub(super) fn insert(&mut self, key: K, value: V, now: Instant, life: Duration) {
        if !self.entries.contains_key(&key) && self.entries.len() >= self.capacity {
            self.entries.retain(|_, (_, expires)| now < *expires);
            if self.entries.len() >= self.capacity {
                let first = self.entries.iter().min_by_key(|(_, (_, expires))| *expires);
                if let Some(first) = first.map(|(key, _)| key.clone()) {
                    self.entries.remove(&first);
                }
            }
        }
        self.entries.insert(key, (value, now + life));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_value_is_there_until_it_expires() {
        let (mut cache, now) = (Cache::new(2), Instant::now());
        cache.insert("a", 1, now, Duration::from_secs(10));
        assert_eq!(cache.get(&"a", now + Duration::from_secs(9)), Some(1));
        assert_eq!(cache.get(&"a", now + Duration::from_secs(10)), None);
        assert_eq!(cache.get(&"b", now), None);
    }

    #[test]
    fn a_full_cache_drops_expired_values_before_others() {
        let (mut cache, now) = (Cache::new(2), Instant::now());
        cache.insert("short", 1, now, Duration::from_secs(1));
        cache.insert("long", 2, now, Duration::from_secs(9));
        let later = now + Duration::from_secs(2);
        cache.insert("new", 3, later, Duration::from_secs(5));
        let found = ["short", "long", "new"].map(|key| cache.get(&key, later));
        assert_eq!(found, [None, Some(2), Some(3)]);
        cache.insert("newer", 4, later, Duration::from_secs(20));
        let found = ["long", "new", "newer"].map(|key| cache.get(&key, later));
        assert_eq!(found, [Some(2), None, Some(4)], "the one that would expire next is gone");
    }

    proptest! {
        #[test]
        fn a_cache_never_grows_beyond_its_capacity_and_never_lies(
            steps in proptest::collection::vec((0u8..20, 0u64..30, 0u64..5), 1..200), capacity in 1usize..8,
        ) {
            let (mut cache, mut now) = (Cache::new(capacity), Instant::now());
            let mut known = HashMap::new();
            for (number, (key, life, pause)) in steps.into_iter().enumerate() {
                now += Duration::from_secs(pause);
                if let Some(found) = cache.get(&key, now) {
                    let (value, expires) = known[&key];
                    prop_assert_eq!(found, value);
                    prop_assert!(now < expires);
                }
                cache.insert(key, number, now, Duration::from_secs(life));
                known.insert(key, (number, now + Duration::from_secs(life)));
                prop_assert!(cache.entries.len() <= capacity);
            }
        }
    }
}
