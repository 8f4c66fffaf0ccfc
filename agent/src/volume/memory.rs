//! `emptyDir.medium: Memory`: a volume that is no share, but a file system in the guest's own memory.

use k8s_openapi::api::core::v1::Volume;

use crate::quantity;

/// Whether a volume is one in memory.
pub(super) fn is_in_memory(volume: &Volume) -> bool {
    volume.empty_dir.as_ref().and_then(|source| source.medium.as_deref()) == Some("Memory")
}

/// How large a volume in memory may be, in bytes; 0 for as large as the guest lets it be. `None` for any other volume.
pub(super) fn size(volume: &Volume) -> Option<u64> {
    let source = volume.empty_dir.as_ref().filter(|_| is_in_memory(volume))?;
    Some(source.size_limit.as_ref().and_then(quantity::whole).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn only_a_volume_in_memory_has_a_size_there() {
        let of =
            |source: Value| size(&serde_json::from_value(json!({"name": "v", "emptyDir": source})).unwrap());
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({"sizeLimit": "1Mi"})), None);
        assert_eq!(of(json!({"medium": "Memory"})), Some(0));
        assert_eq!(of(json!({"medium": "Memory", "sizeLimit": "1Mi"})), Some(1 << 20));
    }
}
