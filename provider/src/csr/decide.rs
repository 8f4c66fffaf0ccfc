//! Whether the Node of a machine gets the certificate that it asks for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::certificate_request::Content;

/// Signs the certificates with which Nodes are clients of the API server.
pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs the certificates with which Nodes serve the kubelet API.
pub(super) const SERVING: &str = "kubernetes.io/kubelet-serving";

/// A request that has no answer yet, from a machine's token or from its Node.
#[derive(Debug, Clone)]
pub(super) struct Request<'a> {
    pub(super) signer: &'a str,
    /// The name of the machine that asks, as the API server knows it by token or certificate.
    pub(super) asked_by: Requester<'a>,
    pub(super) usages: Vec<&'a str>,
    pub(super) content: Result<Content, String>,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requester<'a> {
    /// The token that was made for this machine.
    TokenOf(&'a str),
    /// The Node of this machine.
    Node(&'a str),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Approve,
    Deny(String),
    /// It is not the provider's to answer.
    Leave,
}

/// The answer to a request. `addresses` are those of the machine.
pub(super) fn decide(request: &Request<'_>, addresses: &BTreeSet<IpAddr>) -> Answer {
    let name = match (request.signer, request.asked_by) {
        (CLIENT, Requester::TokenOf(name)) | (SERVING, Requester::Node(name)) => name,
        (SERVING, Requester::TokenOf(_)) => {
            return Answer::Deny("a bootstrap token asks for a client certificate only".to_owned());
        }
        // The cluster itself answers a Node that renews its client certificate.
        _ => return Answer::Leave,
    };
    let content = match &request.content {
        Ok(content) => content,
        Err(problem) => return Answer::Deny(problem.clone()),
    };
    match check(request, content, name, addresses) {
        Ok(()) => Answer::Approve,
        Err(problem) => Answer::Deny(problem),
    }
}

fn check(
    request: &Request<'_>,
    content: &Content,
    name: &str,
    addresses: &BTreeSet<IpAddr>,
) -> Result<(), String> {
    let is_client = request.signer == CLIENT;
    let user = format!("system:node:{name}");
    if content.common_names != [user.as_str()] || content.organizations != ["system:nodes"] {
        return Err(format!("the subject is not {user} of system:nodes"));
    }
    let main = if is_client { "client auth" } else { "server auth" };
    let allowed = ["digital signature", "key encipherment", main];
    if !request.usages.contains(&main) || request.usages.iter().any(|usage| !allowed.contains(usage)) {
        return Err(format!("the usages are not those of {main}"));
    }
    if content.has_other_names {
        return Err("it names what is neither a host nor an address".to_owned());
    }
    if is_client {
        let has_names = !content.dns_names.is_empty() || !content.addresses.is_empty();
        return if has_names { Err("a client certificate has no names of hosts".to_owned()) } else { Ok(()) };
    }
    if let Some(other) = content.dns_names.iter().find(|dns| *dns != name) {
        return Err(format!("{other} is not the name of the machine {name}"));
    }
    if let Some(other) = content.addresses.difference(addresses).next() {
        return Err(format!("{other} is not an address of the machine {name}"));
    }
    if content.dns_names.is_empty() && content.addresses.is_empty() {
        return Err("it names no host and no address".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(node: &str, dns: &[&str], addresses: &[&str]) -> Content {
        Content {
            common_names: vec![format!("system:node:{node}")],
            organizations: vec!["system:nodes".to_owned()],
            dns_names: dns.iter().map(ToString::to_string).collect(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            has_other_names: false,
        }
    }

    fn own() -> BTreeSet<IpAddr> {
        ["10.0.0.1".parse().unwrap()].into()
    }

    fn serving(content: Content) -> Request<'static> {
        let usages = vec!["digital signature", "server auth"];
        Request { signer: SERVING, asked_by: Requester::Node("mac"), usages, content: Ok(content) }
    }

    fn client(content: Content) -> Request<'static> {
        let usages = vec!["digital signature", "client auth"];
        Request { signer: CLIENT, asked_by: Requester::TokenOf("mac"), usages, content: Ok(content) }
    }

    #[test]
    fn a_node_serves_under_its_own_name_and_address_only() {
        assert_eq!(decide(&serving(content("mac", &["mac"], &["10.0.0.1"])), &own()), Answer::Approve);
        assert_eq!(decide(&serving(content("mac", &[], &["10.0.0.1"])), &own()), Answer::Approve);
        for (what, bad) in [
            ("another name", content("mac", &["mac", "kubernetes.default.svc"], &["10.0.0.1"])),
            ("another address", content("mac", &["mac"], &["10.0.0.1", "10.0.0.2"])),
            ("another Node", content("other", &["mac"], &["10.0.0.1"])),
            ("nothing", content("mac", &[], &[])),
            ("a URI", Content { has_other_names: true, ..content("mac", &["mac"], &["10.0.0.1"]) }),
            (
                "another group",
                Content { organizations: vec!["system:masters".to_owned()], ..content("mac", &["mac"], &[]) },
            ),
        ] {
            assert!(matches!(decide(&serving(bad), &own()), Answer::Deny(_)), "{what}");
        }
        let usages = vec!["server auth", "client auth"];
        let both = Request { usages, ..serving(content("mac", &["mac"], &["10.0.0.1"])) };
        assert!(matches!(decide(&both, &own()), Answer::Deny(_)));
    }

    #[test]
    fn a_token_joins_as_the_node_of_its_machine_only() {
        assert_eq!(decide(&client(content("mac", &[], &[])), &own()), Answer::Approve);
        for bad in [content("other", &[], &[]), content("mac", &["mac"], &[])] {
            assert!(matches!(decide(&client(bad), &own()), Answer::Deny(_)));
        }
        let asks_to_serve = Request { signer: SERVING, ..client(content("mac", &["mac"], &["10.0.0.1"])) };
        assert!(matches!(decide(&asks_to_serve, &own()), Answer::Deny(_)));
    }

    #[test]
    fn the_renewal_of_a_client_certificate_is_left_to_the_cluster() {
        let renewal = Request { signer: CLIENT, ..serving(content("mac", &[], &[])) };
        assert_eq!(decide(&renewal, &own()), Answer::Leave);
        let other = Request { signer: "example.com/other", ..serving(content("mac", &[], &[])) };
        assert_eq!(decide(&other, &own()), Answer::Leave);
    }

    proptest! {
        #[test]
        fn nothing_is_approved_that_names_more_than_the_machine(
            node in "mac|other", dns in prop::collection::btree_set("mac|other|x", 0..3),
            addresses in prop::collection::btree_set(prop::sample::select(vec!["10.0.0.1", "10.0.0.2"]), 0..3),
        ) {
            let dns: Vec<_> = dns.iter().map(String::as_str).collect();
            let addresses: Vec<_> = addresses.into_iter().collect();
            let request = serving(content(&node, &dns, &addresses));
            let is_own = node == "mac" && dns.iter().all(|dns| *dns == "mac") && addresses.iter().all(|one| *one == "10.0.0.1");
            let is_empty = dns.is_empty() && addresses.is_empty();
            prop_assert_eq!(decide(&request, &own()) == Answer::Approve, is_own && !is_empty);
        }
    }
}
