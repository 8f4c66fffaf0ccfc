//! `--register-with-taints`: taints that keep Pods away that were not made for a Mac.

use k8s_openapi::api::core::v1::Taint;

use super::labels::{self, BadLabel};

/// The default of `--register-with-taints`.
pub(crate) const DEFAULT: &str = "tuist.dev/macos=true:NoSchedule";

/// Taints for a Node that the agent creates; those of an existing Node belong to the cluster's users.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Taints(pub(crate) Vec<Taint>);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BadTaint {
    #[error("`{0}` is not `key=value:effect` or `key:effect`")]
    Form(String),
    #[error("`{0}` is not an effect: NoSchedule, PreferNoSchedule and NoExecute are")]
    Effect(String),
    #[error(transparent)]
    Label(#[from] BadLabel),
    #[error("the taint `{0}` comes twice with the same effect")]
    Twice(String),
}

/// Parses `key=value:effect,key:effect`.
pub(crate) fn parse(text: &str) -> Result<Taints, BadTaint> {
    let mut taints: Vec<Taint> = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, effect) = item.rsplit_once(':').ok_or_else(|| BadTaint::Form(item.to_owned()))?;
        if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            return Err(BadTaint::Effect(effect.to_owned()));
        }
        let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value)));
        labels::check_key(key)?;
        labels::check_value(key, value.unwrap_or_default())?;
        if taints.iter().any(|taint| taint.key == key && taint.effect == effect) {
            return Err(BadTaint::Twice(key.to_owned()));
        }
        taints.push(Taint {
            key: key.to_owned(),
            value: value.filter(|value| !value.is_empty()).map(str::to_owned),
            effect: effect.to_owned(),
            ..Taint::default()
        });
    }
    Ok(Taints(taints))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_parsed_as_the_kubelet_parses_them() {
        let shown = |text: &str| {
            let Taints(taints) = parse(text).unwrap();
            let show = |t: &Taint| format!("{}={}:{}", t.key, t.value.as_deref().unwrap_or("-"), t.effect);
            taints.iter().map(show).collect::<Vec<_>>()
        };
        assert_eq!(shown(DEFAULT), ["tuist.dev/macos=true:NoSchedule"]);
        assert_eq!(shown(""), Vec::<String>::new());
        assert_eq!(shown("a:NoExecute, b=:NoSchedule"), ["a=-:NoExecute", "b=-:NoSchedule"]);
        assert_eq!(shown("a=1:NoExecute,a=1:NoSchedule").len(), 2);
    }

    #[test]
    fn a_bad_taint_is_refused_with_its_fault() {
        assert_eq!(parse("a=b"), Err(BadTaint::Form("a=b".into())));
        assert_eq!(parse("a=b:Never"), Err(BadTaint::Effect("Never".into())));
        assert_eq!(parse("a=b:NoSchedule,a=c:NoSchedule"), Err(BadTaint::Twice("a".into())));
        assert!(matches!(parse("a b=c:NoSchedule"), Err(BadTaint::Label(_))));
    }
}
