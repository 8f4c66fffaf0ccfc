//! Which containers of a Pod run in one VM.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::container_spec::all_containers;

/// The containers of a Pod that run in one VM, one after the other: neighbours with the same image. The last segment has the main container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The image as the Pod names it.
    pub(crate) image: String,
    /// The names of its init containers, in order.
    pub(crate) init: Vec<String>,
    /// The name of the main container, if it is in this segment.
    pub(crate) main: Option<String>,
}

impl Segment {
    /// The segments of a Pod, in the order in which their VMs run.
    pub(crate) fn all(spec: &PodSpec) -> Vec<Self> {
        let mut segments: Vec<Self> = Vec::new();
        let first_main = spec.init_containers.as_ref().map_or(0, Vec::len);
        for (index, container) in all_containers(spec).enumerate() {
            let image = container.image.clone().unwrap_or_default();
            if segments.last().is_none_or(|segment| segment.image != image) {
                segments.push(Self { image, ..Self::default() });
            }
            let Some(segment) = segments.last_mut() else { continue };
            if index < first_main {
                segment.init.push(container.name.clone());
            } else {
                segment.main = Some(container.name.clone());
            }
        }
        segments
    }

    /// Whether all containers of a Pod run in one VM.
    pub(crate) fn is_only_one(spec: &PodSpec) -> bool {
        Self::all(spec).len() < 2
    }

    pub(crate) fn has(&self, container: &str) -> bool {
        self.init.iter().chain(&self.main).any(|name| name == container)
    }

    /// Its containers in the Pod.
    pub(crate) fn containers<'a>(&'a self, spec: &'a PodSpec) -> impl Iterator<Item = &'a Container> {
        all_containers(spec).filter(|container| self.has(&container.name))
    }

    /// The first container's place in the Pod, as Events name it.
    pub(crate) fn first_field_path(&self) -> String {
        match (self.init.first(), &self.main) {
            (Some(init), _) => init_field_path(init),
            (None, main) => format!("spec.containers{{{}}}", main.as_deref().unwrap_or_default()),
        }
    }
}

/// An init container's place in its Pod, as Events name it.
pub(crate) fn init_field_path(name: &str) -> String {
    format!("spec.initContainers{{{name}}}")
}

#[cfg(test)]
impl Segment {
    /// The only segment of a Pod without init containers.
    pub(crate) fn example(image: &str) -> Self {
        Self { image: image.to_owned(), init: Vec::new(), main: Some("main".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::from_json;
    use serde_json::json;

    fn spec(init: &[&str], main: &str) -> PodSpec {
        let container = |(index, image): (usize, &&str)| json!({"name": format!("i{index}"), "image": image});
        let init: Vec<_> = init.iter().enumerate().map(container).collect();
        from_json(json!({"initContainers": init, "containers": [{"name": "main", "image": main}]}))
    }

    #[test]
    fn neighbours_with_one_image_share_a_vm_and_the_order_stays() {
        for (init, main, expected) in [
            (&[][..], "a", "a:main"),
            (&["a", "a"], "a", "a:i0,i1,main"),
            (&["b"], "a", "b:i0 a:main"),
            (&["b", "b", "a"], "a", "b:i0,i1 a:i2,main"),
            (&["b", "a", "b"], "a", "b:i0 a:i1 b:i2 a:main"),
            (&["a", "b"], "a", "a:i0 b:i1 a:main"),
        ] {
            let segments = Segment::all(&spec(init, main));
            let shown = |it: &Segment| {
                let names: Vec<&str> = it.init.iter().chain(&it.main).map(String::as_str).collect();
                format!("{}:{}", it.image, names.join(","))
            };
            assert_eq!(segments.iter().map(shown).collect::<Vec<_>>().join(" "), expected);
            assert_eq!(Segment::is_only_one(&spec(init, main)), segments.len() == 1);
        }
        assert!(Segment::all(&PodSpec::default()).is_empty());
    }

    #[test]
    fn a_segment_names_its_containers() {
        let spec = spec(&["b", "a"], "a");
        let [own, last] = Segment::all(&spec).try_into().unwrap();
        assert!(own.has("i0") && !own.has("i1") && !own.has("main") && last.has("main") && last.has("i1"));
        assert_eq!(last.containers(&spec).map(|one| one.name.as_str()).collect::<Vec<_>>(), ["i1", "main"]);
        assert_eq!(own.first_field_path(), "spec.initContainers{i0}");
        assert_eq!(Segment::example("a").first_field_path(), "spec.containers{main}");
    }
}
